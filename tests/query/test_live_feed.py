"""The live feed as any client sees it: start, wait, resume, and refusals."""

from __future__ import annotations

import json
import time

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.daemon import Daemon
from tests.drivers.following import Follower, Parked, live
from tests.drivers.wire import (
    Table,
    create,
    delete,
    describe,
    events,
    extra,
    numbers,
    persist,
    put,
    query,
)

KEYED = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])


def test_a_follower_begins_with_now_and_has_all_that_comes(
    client: fl.FlightClient, table: Table
) -> None:
    put(client, table, numbers(0, 3))
    follower = Follower(client, table)
    assert follower.ask().groups == []
    for first in range(3, 30, 3):
        put(client, table, numbers(first, 3))
        assert follower.ask().rows["i"].to_pylist() == [first, first + 1, first + 2]
    assert not follower.ask(wait_s=0).groups


def test_a_call_waits_for_the_next_operation_and_no_longer(
    shared: Daemon, client: fl.FlightClient, table: Table
) -> None:
    put(client, table, numbers(0, 1))
    begun = live(client, table)
    parked = Parked(shared.flight, table, after=begun.position, wait_s=30)
    put(client, ("other", table[1]), numbers(0, 1))
    assert parked.waits
    put(client, table, numbers(1, 2))
    began = time.monotonic()
    answer = parked.result()
    assert time.monotonic() - began < 5
    assert answer.rows["i"].to_pylist() == [1, 2]


def test_a_call_without_news_ends_after_its_time(client: fl.FlightClient, table: Table) -> None:
    put(client, table, numbers(0, 1))
    begun, began = live(client, table), time.monotonic()
    answer = live(client, table, after=begun.position, wait_s=0.3)
    assert 0.3 <= time.monotonic() - began < 5
    assert (answer.groups, answer.position, answer.more) == ([], begun.position, False)


def test_a_new_version_wakes_who_waits(
    shared: Daemon, client: fl.FlightClient, table: Table
) -> None:
    put(client, table, numbers(0, 1))
    begun = live(client, table)
    parked = Parked(shared.flight, table, after=begun.position, version=begun.version, wait_s=30)
    version = persist(client, table)
    answer = parked.result()
    assert (answer.version, answer.groups) == (version, [])
    # A follower with another version is answered at once.
    began = time.monotonic()
    assert live(client, table, after=begun.position, version=version - 1).version == version
    assert time.monotonic() - began < 5


def test_what_a_version_lacks_and_then_everything_once(
    client: fl.FlightClient, table: Table
) -> None:
    put(client, table, events(0, 10, days=3))
    version = persist(client, table)
    put(client, table, events(10, 10, days=3))
    follower = Follower(client, table, version=version)
    assert sorted(follower.ask().rows["i"].to_pylist()) == list(range(10, 20))
    put(client, table, events(20, 10, days=3))
    # The rows are now in files of a version that the follower has not loaded.
    assert persist(client, table) > version
    follower.ask()
    put(client, table, events(30, 5, days=3))
    follower.catch_up()
    assert sorted(follower.column()) == list(range(10, 35))


def test_files_that_the_follower_has_are_left_out(client: fl.FlightClient, table: Table) -> None:
    put(client, table, numbers(0, 1))
    begun = live(client, table)
    put(client, table, numbers(1, 1))
    version = persist(client, table)
    put(client, table, numbers(2, 1))
    assert live(client, table, after=begun.position).rows["i"].to_pylist() == [1, 2]
    with_files = live(client, table, after=begun.position, version=version)
    assert with_files.rows["i"].to_pylist() == [2]
    assert with_files.position == live(client, table).position


def test_groups_name_the_operations_of_one_buffer(client: fl.FlightClient, table: Table) -> None:
    answers = put(client, table, *(events(first, 6, days=2) for first in range(0, 30, 6)))
    seqs = [answer["sequence"] for answer in answers]
    live(client, table)  # a follower makes the daemon retain buffers
    version = persist(client, table)
    put(client, table, events(30, 6, days=2))
    answer = live(client, table, version=version - 1)
    assert {group.partition for group in answer.groups} == {
        "time_day=2026-11-21",
        "time_day=2026-11-22",
    }
    spans = [group.span for group in answer.groups]
    assert spans == [(seqs[0], seqs[-1])] * 2 + [(seqs[-1] + 1, seqs[-1] + 1)] * 2
    for group in answer.groups:
        assert group.metadata["epoch"] == answer.position["epoch"]
        assert group.metadata["source"] == "buffer"
        assert group.rows["i"].to_pylist() == sorted(group.rows["i"].to_pylist())


def test_columns_and_filter_are_pushed_down(client: fl.FlightClient, table: Table) -> None:
    put(client, table, events(0, 10))
    fields = {"columns": ["i"], "filter": [[["i", ">=", 7]]]}
    follower = Follower(client, table, version=1, fields=fields)
    assert follower.ask().rows.to_pydict() == {"i": [7, 8, 9]}
    put(client, table, events(0, 5))
    # No row matches, but the position still advances.
    before = follower.position
    assert follower.ask(wait_s=0).groups == []
    assert follower.position != before


def test_columns_that_come_later_come_with_their_version(
    client: fl.FlightClient, table: Table
) -> None:
    put(client, table, numbers(0, 1))
    follower = Follower(client, table, version=describe(client, table)["manifest_version"])
    assert follower.ask().schema.names == ["i"]
    put(client, table, numbers(1, 1, more=pa.array([7])))
    answer = follower.ask()
    assert follower.version is not None and answer.version > follower.version
    assert answer.rows.to_pylist() == [{"i": 1, "more": 7}]


def test_a_keyed_table_tells_upserts_and_deletes(client: fl.FlightClient, table: Table) -> None:
    create(client, table, KEYED, primary_key=["k"])
    follower = Follower(client, table)
    follower.ask()
    put(client, table, keyed((1, 10), (2, 20)), keyed((1, 11)))
    delete(client, table, pa.record_batch({"k": pa.array([2, 3])}))
    changes = follower.ask().rows.to_pylist()
    assert sorted((row["k"], row["v"], row["_op"]) for row in changes if row["k"] == 1) == [
        (1, 11, "upsert")
    ]
    assert sorted((row["k"], row["v"], row["_op"]) for row in changes if row["k"] > 1) == [
        (2, None, "delete"),
        (3, None, "delete"),
    ]


def test_what_matches_no_more_is_deleted(client: fl.FlightClient, table: Table) -> None:
    create(client, table, KEYED, primary_key=["k"])
    follower = Follower(client, table, fields={"filter": [[["v", ">", 5]]]})
    follower.ask()
    put(client, table, keyed((1, 10), (2, 1)))
    put(client, table, keyed((1, 2)))
    assert {(r["k"], r["v"], r["_op"]) for r in follower.ask().rows.to_pylist()} == {
        (1, None, "delete"),
        (2, None, "delete"),
    }


def keyed(*pairs: tuple[int, int]) -> pa.RecordBatch:
    """Rows with the schema ``KEYED``."""
    return pa.RecordBatch.from_pylist([{"k": k, "v": v} for k, v in pairs], KEYED)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"wait_s": 31}, "wait_s 31 is not between 0 and 30"),
        ({"wait_s": -1}, "wait_s -1 is not"),
        ({"wait_s": float("nan")}, "JSON"),
        ({"limit": 3}, "live' takes no limit"),
        ({"after": {"epoch": 1}}, "sequence"),
        ({"after": {"epoch": 1, "sequence": -1}}, "must not be negative"),
        ({"after": {"epoch": 1, "sequence": 10**30}}, "sequence"),
        ({"after": 7}, "after"),
        ({"after": {"epoch": 1, "sequence": 1, "more": 1}}, "more"),
        ({"version": 1000}, "version 1000 of .* does not exist, the newest is 1"),
        ({"version": 0}, "less than 1"),
        ({"columns": ["nowhere"]}, "unknown column 'nowhere'"),
        ({"filter": [[["nowhere", "=", 1]]]}, "unknown column 'nowhere'"),
        ({"scope": "all", "wait_s": 1}, "wait_s is only valid with scope 'live'"),
        ({"scope": "buffered", "after": {"epoch": 1, "sequence": 1}}, "after is only valid with"),
    ],
)
def test_what_cannot_be_asked_is_refused_by_name(
    client: fl.FlightClient, table: Table, fields: dict[str, object], says: str
) -> None:
    put(client, table, numbers(0, 1))
    with pytest.raises(pa.ArrowInvalid, match=says):
        live(client, table, **{"scope": "live", **fields})


def test_a_position_that_is_ahead_is_refused_and_not_waited_for(
    client: fl.FlightClient, table: Table
) -> None:
    put(client, table, numbers(0, 1))
    position = live(client, table).position
    ahead = {**position, "sequence": position["sequence"] + 10**6}
    with pytest.raises(pa.ArrowInvalid, match="ahead of this daemon, whose newest operation"):
        live(client, table, after=ahead)


def test_a_position_of_another_daemon_is_stale(client: fl.FlightClient, table: Table) -> None:
    put(client, table, numbers(0, 1))
    position = live(client, table).position
    for other in ({"ingester_id": "elsewhere"}, {"epoch": position["epoch"] + 1}, {"epoch": 0}):
        with pytest.raises(fl.FlightUnavailableError) as refused:
            live(client, table, after={**position, **other})
        said = extra(refused.value)
        assert (said["code"], said["version"]) == ("stale", 1)


def test_an_unknown_table_is_not_waited_for(client: fl.FlightClient) -> None:
    with pytest.raises(KeyError, match="does not exist"):
        live(client, ("no", "such"), wait_s=30)


def test_flight_info_of_a_live_ticket_leads_to_the_feed(
    client: fl.FlightClient, table: Table
) -> None:
    create(client, table, KEYED, primary_key=["k"])
    put(client, table, keyed((1, 10)))
    asked = {"namespace": table[0], "table": table[1], "scope": "live", "version": 1}
    descriptor = fl.FlightDescriptor.for_command(json.dumps({**asked, "wait_s": 0.5}).encode())
    info = client.get_flight_info(descriptor)
    assert info.schema.names == client.get_schema(descriptor).schema.names == ["k", "v", "_op"]
    assert (info.total_records, info.total_bytes) == (-1, -1)
    (endpoint,) = info.endpoints
    found = client.do_get(endpoint.ticket).read_all()
    assert found.to_pylist() == [{"k": 1, "v": 10, "_op": "upsert"}]


def test_who_asks_again_and_again_with_what_is_stale_holds_nobody_up(
    client: fl.FlightClient, table: Table
) -> None:
    put(client, table, numbers(0, 1))
    position = {**live(client, table).position, "ingester_id": "elsewhere"}
    for number in range(1, 101):
        with pytest.raises(fl.FlightUnavailableError):
            live(client, table, after=position)
        if number % 10 == 0:
            put(client, table, numbers(number, 1))
    assert query(client, table).num_rows == 11
