"""Exactly once, whatever the connection does."""

import threading

import pyarrow as pa
import pytest

from ingester.client import (
    Client,
    InvalidRequest,
    OriginClash,
    RetryPolicy,
    Unavailable,
    UnknownOutcome,
    Unreachable,
    WriteResult,
)
from tests.client.conftest import QUICK
from tests.client.small_daemon import LostAnswer, SmallDaemon, unavailable
from tests.client.wire_cutter import WireCutter

SCHEMA = pa.schema([("v", pa.int64())])


def batch(*values: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA)


def values(daemon: SmallDaemon) -> list[int]:
    found: list[int] = daemon.table("ns", "t").column("v").to_pylist()
    return found


def test_a_written_table_is_acknowledged_and_counted(daemon: SmallDaemon, client: Client) -> None:
    result = client.write("ns", "t", pa.table({"v": pa.array([1, 2, 3], pa.int64())}))
    assert result == WriteResult(
        rows=3, batches=1, duplicates=0, sequence=1, epoch=1, memory_sequence=1
    )
    assert values(daemon) == [1, 2, 3]


def test_nothing_to_write_sends_nothing(daemon: SmallDaemon, client: Client) -> None:
    assert client.write("ns", "t", []) == WriteResult()
    assert client.write("ns", "t", SCHEMA.empty_table()) == WriteResult()
    assert daemon.commands == []


def test_many_batches_are_pipelined_in_order(daemon: SmallDaemon, client: Client) -> None:
    result = client.write("ns", "t", (batch(n) for n in range(2000)))
    assert (result.rows, result.batches) == (2000, 2000)
    assert values(daemon) == list(range(2000))
    assert len(daemon.commands) == 1


def test_a_refusal_for_now_is_retried_in_order(daemon: SmallDaemon, client: Client) -> None:
    def refuse(n: int) -> None:
        if n in (3, 9, 10):
            raise unavailable("memory", retry_after_s=0.01)

    daemon.before = refuse
    result = client.write("ns", "t", (batch(n) for n in range(20)))
    assert values(daemon) == list(range(20))
    assert (result.rows, result.batches) == (20, 20)
    # Nothing is sent again but the refused, and what pyarrow lost the answers of with a stream.
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


def test_without_an_origin_a_refusal_at_the_door_is_retried(
    daemon: SmallDaemon, client: Client
) -> None:
    def refuse(n: int) -> None:
        if n == 1:
            raise unavailable("saturated")

    daemon.before = refuse
    client.write("ns", "t", [batch(1), batch(2)], exactly_once=False)
    assert values(daemon) == [1, 2]


def test_an_invalid_batch_is_not_retried_and_fails_the_writer(
    daemon: SmallDaemon, client: Client
) -> None:
    def refuse(n: int) -> None:
        if n == 2:
            raise pa.ArrowInvalid("column 'v': table has double, batch has int64")

    daemon.before = refuse
    writer = client.writer("ns", "t", SCHEMA)
    first, second = writer.write(batch(1)), writer.write(batch(2))
    assert first.result(10).accepted
    with pytest.raises(InvalidRequest, match=r"^column 'v': table has double, batch has int64$"):
        second.result(10)
    with pytest.raises(InvalidRequest):
        writer.write(batch(3))
    with pytest.raises(InvalidRequest):
        writer.close()
    assert daemon.seen == 2


def test_giving_up_says_why_and_when_to_come_back(daemon: SmallDaemon) -> None:
    def refuse(n: int) -> None:
        raise unavailable("disk_full", retry_after_s=30)

    daemon.before = refuse
    client = Client(daemon.endpoint, retry=RetryPolicy(for_s=0.2))
    with client, pytest.raises(Unavailable, match=r"^refused: disk_full$") as refused:
        client.write("ns", "t", batch(1))
    assert (refused.value.code, refused.value.retry_after_s) == ("disk_full", 30)


def test_a_newer_stream_of_the_origin_is_not_fought(daemon: SmallDaemon, client: Client) -> None:
    def refuse(n: int) -> None:
        raise unavailable("superseded")

    daemon.before = refuse
    with pytest.raises(Unavailable) as refused:
        client.write("ns", "t", batch(1), origin="o", first_sequence=1)
    assert refused.value.code == "superseded"
    assert daemon.seen == 1


def test_a_cut_connection_loses_and_doubles_nothing(daemon: SmallDaemon) -> None:
    cuts: list[int] = []
    with WireCutter(daemon.port) as wire, Client(wire.endpoint, retry=QUICK) as client:

        def cut_each_connection(n: int) -> None:
            if len(cuts) < min(3, wire.connections):
                cuts.append(n)
                wire.cut()

        daemon.after = cut_each_connection
        result = client.write("ns", "t", (batch(n) for n in range(200)))
    assert len(cuts) >= 2  # the first handler may still be at work and make a later cut
    assert values(daemon) == list(range(200))
    assert result.rows == 200


def test_a_restarted_daemon_gets_the_rest(daemon: SmallDaemon) -> None:
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


def test_an_own_origin_goes_on_where_the_daemon_knows_it(
    daemon: SmallDaemon, client: Client
) -> None:
    client.write("ns", "t", [batch(1), batch(2)], origin="o")
    client.write("ns", "t", [batch(3)], origin="o")
    assert [m and m["sequence"] for m in daemon.metadata] == [1, 2, 3]
    assert values(daemon) == [1, 2, 3]


def test_repeating_a_given_sequence_adds_nothing(daemon: SmallDaemon, client: Client) -> None:
    client.write("ns", "t", [batch(1), batch(2)], origin="o", first_sequence=1)
    again = client.write("ns", "t", [batch(1), batch(2), batch(3)], origin="o", first_sequence=1)
    assert again.duplicates == 2
    assert values(daemon) == [1, 2, 3]


def test_a_batch_taken_for_someone_elses_is_reported(daemon: SmallDaemon, client: Client) -> None:
    writer = client.writer("ns", "t", SCHEMA, origin="o")
    daemon.sequences["ns", "t", "o"] = 5
    daemon.rows["ns", "t"] = [batch(0)]
    with pytest.raises(OriginClash, match="sequence 1"):
        writer.write(batch(1)).result(10)


def test_a_made_up_origin_is_reused_after_its_writer_closed(
    daemon: SmallDaemon, client: Client
) -> None:
    for n in range(5):
        client.write("ns", "t", batch(n))
    assert len({command["origin"] for command in daemon.commands}) == 1
    with client.writer("ns", "t", SCHEMA) as one, client.writer("ns", "t", SCHEMA) as two:
        assert one.origin != two.origin
    assert values(daemon) == list(range(5))


def test_a_checkpoint_travels_with_its_batch(daemon: SmallDaemon, client: Client) -> None:
    with client.writer("ns", "t", SCHEMA, origin="o", first_sequence=17) as writer:
        writer.write(batch(1), checkpoint=("topic-0", b"\x00\xff"))
    assert daemon.metadata == [
        {"sequence": 17, "checkpoint": {"partition": "topic-0", "state": "AP8="}}
    ]


def test_a_full_window_waits_for_answers(daemon: SmallDaemon, client: Client) -> None:
    go_on = threading.Event()

    def hold(n: int) -> None:
        assert go_on.wait(10)

    daemon.before = hold
    writer = client.writer("ns", "t", SCHEMA, max_unanswered=2)
    assert writer.try_write(batch(1)) is not None
    assert writer.try_write(batch(2)) is not None
    assert writer.try_write(batch(3)) is None
    go_on.set()
    writer.write(batch(3))
    assert writer.close().batches == 3


def test_a_silent_daemon_is_given_up_and_asked_again(daemon: SmallDaemon) -> None:
    silent, told = threading.Event(), threading.Event()

    def hold(n: int) -> None:
        if n == 1:
            told.set()
            silent.wait(10)

    daemon.after = hold  # applied, and then nothing
    with Client(daemon.endpoint, timeout_s=0.3, retry=QUICK) as client:
        writer = client.writer("ns", "t", SCHEMA)
        answer = writer.write(batch(1)).result(10)
        assert told.is_set()
        silent.set()
        writer.close()
    assert answer.duplicate
    assert values(daemon) == [1]


def test_a_body_that_raises_does_not_wait_for_answers(daemon: SmallDaemon, client: Client) -> None:
    go_on = threading.Event()

    def hold(n: int) -> None:
        assert go_on.wait(10)

    daemon.before = hold
    acks = []

    def body() -> None:
        with client.writer("ns", "t", SCHEMA) as writer:
            acks.append(writer.write(batch(1)))
            raise LookupError

    with pytest.raises(LookupError):
        body()
    go_on.set()
    assert isinstance(acks[0].exception(10), UnknownOutcome)


def test_another_schema_is_refused_before_it_is_sent(daemon: SmallDaemon, client: Client) -> None:
    other = pa.record_batch({"w": [1]})
    with pytest.raises(InvalidRequest, match="another schema"):
        client.write("ns", "t", [batch(1), other])
    with pytest.raises(InvalidRequest, match="not a dict"):
        client.write("ns", "t", {"v": [1]})


def test_several_threads_share_a_writer(daemon: SmallDaemon, client: Client) -> None:
    with client.writer("ns", "t", SCHEMA) as writer:

        def write(start: int) -> None:
            for n in range(start, start + 100):
                writer.write(batch(n))

        threads = [threading.Thread(target=write, args=(i * 100,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(values(daemon)) == list(range(400))
