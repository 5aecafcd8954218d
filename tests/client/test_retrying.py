"""Writes are exactly once despite lost connections and refusals."""

import threading

import pytest

from ingester.client import Client, RetryPolicy, Unavailable, UnknownOutcome, Unreachable
from tests.client.conftest import QUICK
from tests.client.rows import SCHEMA, batch, values
from tests.client.small_daemon import LostAnswer, SmallDaemon, unavailable
from tests.client.wire_cutter import WireCutter


def test_a_transient_refusal_is_retried_in_order(daemon: SmallDaemon, client: Client) -> None:
    def refuse(n: int) -> None:
        if n in (3, 9, 10):
            raise unavailable("memory", retry_after_s=0.01)

    daemon.before = refuse
    result = client.write("ns", "t", (batch(n) for n in range(20)))
    assert values(daemon) == list(range(20))
    assert (result.rows, result.batches) == (20, 20)
    # Only refused batches and those whose answers pyarrow lost with a stream are sent again.
    sent_again = daemon.seen - 20 - 3
    assert result.duplicates <= sent_again <= 3 * len(daemon.commands)


def test_a_lost_answer_is_not_written_twice(daemon: SmallDaemon, client: Client) -> None:
    def lose(n: int) -> None:
        if n in (2, 5):
            raise LostAnswer("connection reset")

    daemon.after = lose
    result = client.write("ns", "t", (batch(n) for n in range(10)))
    assert values(daemon) == list(range(10))
    assert (result.rows, result.batches) == (10, 10)
    assert result.duplicates >= 2


def test_without_an_origin_a_lost_answer_is_an_unknown_outcome(
    daemon: SmallDaemon, client: Client
) -> None:
    def lose(n: int) -> None:
        raise LostAnswer("connection reset")

    daemon.after = lose
    with pytest.raises(UnknownOutcome, match="no origin"):
        client.write("ns", "t", batch(1), exactly_once=False)
    assert values(daemon) == [1]
    assert "origin" not in daemon.commands[0]


def test_without_an_origin_a_refused_connection_is_retried(
    daemon: SmallDaemon, client: Client
) -> None:
    def refuse(n: int) -> None:
        if n == 1:
            raise unavailable("saturated")

    daemon.before = refuse
    client.write("ns", "t", [batch(1), batch(2)], exactly_once=False)
    assert values(daemon) == [1, 2]


def test_giving_up_reports_the_reason_and_the_retry_delay(daemon: SmallDaemon) -> None:
    def refuse(n: int) -> None:
        raise unavailable("disk_full", retry_after_s=30)

    daemon.before = refuse
    client = Client(daemon.endpoint, retry=RetryPolicy(for_s=0.2))
    with client, pytest.raises(Unavailable, match=r"^refused: disk_full$") as refused:
        client.write("ns", "t", batch(1))
    assert (refused.value.code, refused.value.retry_after_s) == ("disk_full", 30)


def test_a_cut_connection_loses_and_doubles_no_row(daemon: SmallDaemon) -> None:
    cuts: list[int] = []
    with WireCutter(daemon.port) as wire, Client(wire.endpoint, retry=QUICK) as client:

        def cut_each_connection(n: int) -> None:
            if len(cuts) < min(3, wire.connections):
                cuts.append(n)
                wire.cut()

        daemon.after = cut_each_connection
        result = client.write("ns", "t", (batch(n) for n in range(200)))
    assert len(cuts) >= 2  # the first handler may still run and make a later cut
    assert values(daemon) == list(range(200))
    assert result.rows == 200


def test_a_restarted_daemon_receives_the_rest(daemon: SmallDaemon) -> None:
    with (
        SmallDaemon() as restarted,
        WireCutter(daemon.port) as wire,
        Client(wire.endpoint, retry=QUICK) as client,
        client.writer("ns", "t", SCHEMA) as writer,
    ):
        writer.write(batch(1)).result(10)
        wire.cut(restarted.port)
        assert writer.write(batch(2)).result(10).accepted
        assert (values(daemon), values(restarted)) == ([1], [2])


def test_an_address_with_no_daemon_is_unreachable(daemon: SmallDaemon) -> None:
    daemon.shutdown()
    with Client(daemon.endpoint, retry=RetryPolicy(for_s=0.1)) as client:
        with pytest.raises(Unreachable, match="refused") as failed:
            client.write("ns", "t", batch(1))
        assert "gRPC" not in str(failed.value)


def test_a_silent_daemon_is_abandoned_and_retried(daemon: SmallDaemon) -> None:
    silent, told = threading.Event(), threading.Event()

    def hold(n: int) -> None:
        if n == 1:
            told.set()
            silent.wait(10)

    daemon.after = hold  # applies the batch and then waits
    with Client(daemon.endpoint, timeout_s=0.3, retry=QUICK) as client:
        writer = client.writer("ns", "t", SCHEMA)
        answer = writer.write(batch(1)).result(10)
        assert told.is_set()
        silent.set()
        writer.close()
    assert answer.duplicate
    assert values(daemon) == [1]
