"""Streams among small servers that fail at an exact moment move and return."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial

import pytest

from ingester.client import (
    Client,
    RetryPolicy,
    Unavailable,
    UnknownOutcome,
    Unreachable,
    sender,
    undurable,
)
from ingester.client.cluster import ClusterConnection, members, route
from ingester.client.cluster.daemons import ranked
from ingester.client.connection import Connection
from ingester.client.retry import NEVER
from ingester.client.streams import PutStream
from tests.client.rows import SCHEMA, batch, values
from tests.client.small_daemon import Fault, LostAnswer, SmallDaemon, unavailable
from tests.drivers.ports import free_port
from tests.drivers.waiting import until

KEEPING = {"origin": "o", "first_sequence": 1, "keep_until_durable": True}
QUICK = RetryPolicy(for_s=5, first_delay_s=0.005, max_delay_s=0.05)


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, SmallDaemon]]:
    """Two servers by endpoint; writers of ``ns/t`` with origin "o" prefer the first."""
    monkeypatch.setattr(sys, "tracebacklimit", 0, raising=False)
    monkeypatch.setattr(route, "BACK_S", 0.1)
    with SmallDaemon() as one, SmallDaemon() as two:
        both = {each.endpoint: each for each in (one, two)}
        yield {endpoint: both[endpoint] for endpoint in ranked(("ns", "t", "o"), both)}


def refusing(code: str) -> Fault:
    """Return a fault that refuses every batch as a daemon does."""

    def refuse(n: int) -> None:
        raise unavailable(code)

    return refuse


@pytest.mark.parametrize("code", ["stopping", "fenced", "disk_full"])
def test_a_stream_leaves_a_stopping_daemon_and_returns_after_its_restart(
    pair: dict[str, SmallDaemon], code: str
) -> None:
    home, other = pair.values()
    takes = {"accepts_writes": False}
    home.actions["status"] = lambda body: [{"admission": takes}]
    with Client(list(pair), timeout_s=10, retry=QUICK) as client:
        with client.writer("ns", "t", SCHEMA, origin="o", first_sequence=1) as writer:
            writer.write(batch(1)).result(10)
            home.before = refusing(code)
            began = time.monotonic()
            writer.write(batch(2)).result(20)
            assert time.monotonic() - began < QUICK.for_s, "it does not wait for the one that goes"
            assert values(other) == [2]
            # The daemon answers but accepts no writes: streams stay at the other one.
            home.before = lambda n: None
            for number in range(3, 6):
                writer.write(batch(number)).result(10)
            assert len(home.commands) == 1
            takes["accepts_writes"] = True
            numbers = iter(range(6, 10_000))
            until(
                lambda: (
                    bool(writer.write(batch(next(numbers))).result(10)) and len(home.commands) > 1
                ),
                "the stream goes home",
            )
        found = values(home) + values(other)
        assert sorted(found) == sorted(set(found))
        assert len(found) == next(numbers) - 1


def test_a_batch_without_room_at_any_daemon_is_waited_for(
    pair: dict[str, SmallDaemon],
) -> None:
    home, other = pair.values()
    refused = iter(range(3))

    def full(n: int) -> None:
        if next(refused, None) is not None:
            raise unavailable("memory")

    home.before = full
    with Client(list(pair), timeout_s=10, retry=QUICK) as client:
        client.write("ns", "t", batch(1), origin="o", first_sequence=1)
    assert next(refused, None) is None
    assert not other.rows


def test_lost_rows_are_retried_after_pauses_while_no_daemon_is_reachable(
    pair: dict[str, SmallDaemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every acknowledged row is lost, no newer row waits, and no daemon is reachable."""
    monkeypatch.setattr(undurable, "UNREACHABLE_S", 0.1)
    monkeypatch.setattr(sender, "LOOK_AGAIN_S", 0.05)
    opened, open_one = 0, route.ToMany.open

    def open_next(way: route.ToMany) -> PutStream:
        nonlocal opened
        opened += 1
        if opened > 200:
            raise RuntimeError("tried again and again without a pause")
        if opened > 1:
            raise Unreachable("nobody is there")
        return open_one(way)

    def away(body: object) -> list[dict[str, object]]:
        raise unavailable("unavailable")

    monkeypatch.setattr(route.ToMany, "open", open_next)
    policy = RetryPolicy(for_s=1, first_delay_s=0.05, max_delay_s=0.2)
    with Client(list(pair), timeout_s=10, retry=policy) as client:
        writer = client.writer("ns", "t", SCHEMA, **KEEPING)  # type: ignore[arg-type]
        writer.write(batch(1)).result(10)
        for each in pair.values():
            each.actions["origins"] = away
        with pytest.raises(Unreachable, match="nobody is there"):
            writer.close()


def test_closing_reports_a_daemons_error_if_its_progress_is_unknown(
    pair: dict[str, SmallDaemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon that cannot reach its store keeps running, and may not know more for long."""
    monkeypatch.setattr(undurable, "UNREACHABLE_S", 0.1)
    monkeypatch.setattr(sender, "LOOK_AGAIN_S", 0.05)
    asked = 0

    def away(body: object) -> list[dict[str, object]]:
        nonlocal asked
        asked += 1
        if asked < 100:
            raise unavailable("store")
        return [{"origin": "o", "memory_sequence": 1, "marks": [1], "there": [True]}]

    for each in pair.values():
        each.actions["origins"] = away
    with Client(list(pair), timeout_s=10, retry=QUICK) as client:
        writer = client.writer("ns", "t", SCHEMA, **KEEPING)  # type: ignore[arg-type]
        writer.write(batch(1)).result(10)
        with pytest.raises(Unavailable, match="refused: store"):
            writer.close()
        writer.abort()


@pytest.mark.parametrize("keyed", [True, False])
def test_only_for_a_keyed_table_earlier_rows_are_resent_to_the_next_daemon_first(
    pair: dict[str, SmallDaemon], keyed: bool
) -> None:
    """The last row of a key wins; without a key each daemon answers with its own rows."""
    home, other = pair.values()
    for each in pair.values():
        each.actions["describe_table"] = lambda body: [{"primary_key": ["v"] if keyed else []}]
    with Client(list(pair), timeout_s=10, retry=QUICK) as client:
        writer = client.writer("ns", "t", SCHEMA, **KEEPING)  # type: ignore[arg-type]
        try:
            for number in (1, 2, 3):
                writer.write(batch(number)).result(10)
            home.before = refusing("stopping")
            for number in (4, 5):
                writer.write(batch(number)).result(10)
        finally:
            writer.abort()
        assert values(other) == ([1, 2, 3, 4, 5] if keyed else [4, 5])
        assert writer.acknowledged.batches == 5


@pytest.mark.parametrize("many", [True, False])
@pytest.mark.parametrize("restarted", [True, False])
def test_a_running_daemon_confirms_its_rows_without_the_store(
    pair: dict[str, SmallDaemon], monkeypatch: pytest.MonkeyPatch, many: bool, restarted: bool
) -> None:
    monkeypatch.setattr(undurable, "UNREACHABLE_S", 0.1)
    monkeypatch.setattr(sender, "LOOK_AGAIN_S", 0.05)
    home, other = pair.values()
    process = {"ingester_id": "a", "incarnation": "1", "epoch": 1}

    def away(body: object) -> list[dict[str, object]]:
        raise unavailable("store")

    home.actions["store"] = lambda body: [process]
    other.actions["store"] = lambda body: [{**process, "ingester_id": "b"}]
    home.actions["origins"] = other.actions["origins"] = away
    broken = iter([True])

    def break_once(n: int) -> None:
        if n == 3 and next(broken, False):
            raise LostAnswer("lost")

    home.after = break_once
    policy = RetryPolicy(for_s=0.3, first_delay_s=0.01, max_delay_s=0.02)
    with Client(list(pair) if many else home.endpoint, timeout_s=10, retry=policy) as client:
        writer = client.writer("ns", "t", SCHEMA, **KEEPING)  # type: ignore[arg-type]
        for number in (1, 2):
            writer.write(batch(number)).result(10)
        if restarted:
            process["incarnation"] = "2"
        refused = pytest.raises(Unavailable, match="refused: store")
        try:
            with refused if restarted else nullcontext():
                writer.write(batch(3)).result(10)
                assert writer.close().batches == 3
        finally:
            writer.abort()
    assert {*values(home), *(values(other) if other.rows else ())} == {1, 2, 3}


@pytest.mark.parametrize("owner", [None, {"ingester_id": "away", "endpoint": None}])
def test_a_keyed_table_without_its_owner_is_read_at_the_newest_known_version(
    pair: dict[str, SmallDaemon], owner: dict[str, object] | None
) -> None:
    """The owner has just been drained, or a daemon has not yet seen the newest commit."""
    for version, each in enumerate(pair.values(), 3):
        keyed = {"primary_key": ["v"], "manifest_version": version, "owner": owner}
        each.actions["describe_table"] = partial(lambda told, body: [told], keyed)
        each.rows["ns", "t"] = [batch(1)]
    away = [] if owner is None else [f"grpc://127.0.0.1:{free_port()}"]
    with Client([*pair, *away], timeout_s=10, retry=QUICK) as client:
        found = client.query("ns", "t", missing="allow")
    assert found["v"].to_pylist() == [1]
    assert json.loads((found.schema.metadata or {}).get(b"missing", "[]")) == away
    read = [ticket.get("version") for each in pair.values() for ticket in each.tickets]
    assert 4 in read


def test_rows_without_an_origin_are_sent_once(pair: dict[str, SmallDaemon]) -> None:
    for each in pair.values():
        each.after = refusing("unavailable")
    with (
        Client(list(pair), timeout_s=10, retry=QUICK) as client,
        pytest.raises(UnknownOutcome),
    ):
        client.write("ns", "t", batch(1), exactly_once=False)
    assert sum(len(each.rows) for each in pair.values()) == 1


def test_a_policy_without_retries_does_not_move(
    pair: dict[str, SmallDaemon],
) -> None:
    home, other = pair.values()
    home.before = refusing("stopping")
    with Client(list(pair), retry=NEVER) as client, pytest.raises(Unavailable, match="stopping"):
        client.write("ns", "t", batch(1), origin="o", first_sequence=1)
    assert not other.rows


def test_daemons_are_added_and_removed_with_their_dns_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(members, "LOOK_UP_S", 0.0)
    with SmallDaemon() as one:
        port = one.port
        with SmallDaemon(f"grpc://127.0.0.2:{port}"):
            records = ["127.0.0.1"]
            calls = ClusterConnection(
                f"dns+grpc://pods:{port}", 5.0, NEVER, lookup=lambda *_: records
            )
            assert [each.endpoint for each in calls.each()] == [f"grpc://127.0.0.1:{port}"]
            records[:] = ["127.0.0.2", "127.0.0.1"]
            assert len(calls.each()) == 2
            assert calls.tables() == []
            records[:] = ["127.0.0.2"]
            (left,) = calls.each()
            assert left.endpoint == f"grpc://127.0.0.2:{port}"
            assert isinstance(left, Connection)
            records.clear()  # a DNS name briefly without records: the known daemons are still asked
            assert calls.each() == [left]
            calls.close()
