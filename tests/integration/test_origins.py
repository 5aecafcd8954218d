"""Origins and sequences: a repeated batch adds nothing, whatever happened between the two."""

from __future__ import annotations

import base64
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.daemon import Daemon
from tests.integration.wire import (
    ARROW_AND_FLIGHT,
    Stream,
    Table,
    act,
    command,
    events,
    extra,
    numbers,
    persist,
    put,
    query,
    rows,
    writing,
)


def _sent(first: int, last: int) -> tuple[list[pa.RecordBatch], list[dict[str, int]]]:
    """Batches ``first..last`` of 10 rows, and their sequences."""
    batches = [events(n * 10, 10, days=3) for n in range(first, last + 1)]
    return batches, [{"sequence": n} for n in range(first, last + 1)]


def _send(client: fl.FlightClient, table: Table, origin: str, first: int, last: int) -> list[Any]:
    batches, metadata = _sent(first, last)
    return put(client, table, *batches, origin=origin, metadata=metadata)


def _origin(client: fl.FlightClient, name: str) -> dict[str, Any]:
    (found,) = act(client, "origins", origin=name)
    return found


@pytest.fixture
def origin(table: Table) -> str:
    """An origin that no other test uses."""
    return f"origin-{table[1]}"


def test_answers_tell_what_is_in_memory_and_what_is_in_files(
    client: fl.FlightClient, table: Table, origin: str
) -> None:
    first, second = _send(client, table, origin, 1, 2)
    assert set(first) == {
        "accepted",
        "sequence",
        "epoch",
        "duplicate",
        "memory_sequence",
        "durable_sequence",
        "first",
    }
    assert (first["first"], second["first"]) == (True, False)
    assert (first["memory_sequence"], second["memory_sequence"]) == (1, 2)
    assert second["durable_sequence"] is None
    persist(client, table)
    (third,) = _send(client, table, origin, 3, 3)
    assert (third["memory_sequence"], third["durable_sequence"], third["first"]) == (3, 2, False)


def test_answers_without_an_origin_know_nothing_of_one(
    client: fl.FlightClient, table: Table
) -> None:
    (answer,) = put(client, table, numbers(0, 1))
    assert answer["memory_sequence"] is answer["durable_sequence"] is None
    assert (answer["first"], answer["duplicate"]) == (False, False)


def test_what_was_written_is_a_duplicate_and_not_applied(
    client: fl.FlightClient, table: Table, origin: str
) -> None:
    _send(client, table, origin, 1, 5)
    again = _send(client, table, origin, 3, 7)
    assert [answer["duplicate"] for answer in again] == [True, True, True, False, False]
    assert all(answer["accepted"] for answer in again)
    assert rows(client, table) == list(range(10, 80))


def test_a_duplicate_is_one_after_persist_too(
    client: fl.FlightClient, table: Table, origin: str
) -> None:
    _send(client, table, origin, 1, 5)
    persist(client, table)
    again = _send(client, table, origin, 1, 6)
    assert [answer["duplicate"] for answer in again] == [True] * 5 + [False]
    persist(client, table)
    assert rows(client, table) == list(range(10, 70))


def test_sequences_may_have_gaps(client: fl.FlightClient, table: Table, origin: str) -> None:
    batches = [numbers(i, 1) for i in range(3)]
    sequences = [{"sequence": n} for n in (0, 1000, 2**62)]
    put(client, table, *batches, origin=origin, metadata=sequences)
    (late,) = put(client, table, numbers(9, 1), origin=origin, metadata=[{"sequence": 500}])
    assert late["duplicate"]
    assert rows(client, table) == [0, 1, 2]


def test_tables_and_origins_have_sequences_of_their_own(
    client: fl.FlightClient, table: Table, origin: str
) -> None:
    other = (table[0], table[1] + "-other")
    for where, who in ((table, origin), (other, origin), (table, origin + "-2")):
        answers = _send(client, where, who, 1, 2)
        assert [answer["duplicate"] for answer in answers] == [False, False]
    assert len(rows(client, table)) == 40
    assert len(rows(client, other)) == 20


def test_batches_of_an_origin_without_sequence_are_never_duplicates(
    client: fl.FlightClient, table: Table, origin: str
) -> None:
    for _ in range(2):
        (answer,) = put(client, table, numbers(0, 1), origin=origin)
        assert not answer["duplicate"]
    assert rows(client, table) == [0, 0]


def test_a_pipelined_copy_is_answered_and_applied_once(
    client: fl.FlightClient, table: Table, origin: str
) -> None:
    with Stream(client, writing(table, origin), numbers(0, 1).schema) as stream:
        for i in range(200):
            for _ in range(2):
                stream.send(numbers(i, 1), {"sequence": i})
        answers = stream.rest()
    assert [answer["duplicate"] for answer in answers] == [False, True] * 200
    assert rows(client, table) == list(range(200))


def test_two_clients_racing_with_one_origin_add_each_batch_once(
    shared: Daemon, client: fl.FlightClient, table: Table, origin: str
) -> None:
    def race() -> None:
        with fl.connect(shared.flight) as own:
            for _ in range(10):
                try:
                    _send(own, table, origin, 0, 60)
                except fl.FlightUnavailableError as error:
                    codes.append(extra(error)["code"])

    # Each repeats everything when another has taken over, as incarnations of one sender would.
    codes: list[str] = []
    racers = [threading.Thread(target=race) for _ in range(3)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert set(codes) == {"superseded"}
    _send(client, table, origin, 0, 60)
    assert rows(client, table) == list(range(610))


def test_a_refused_batch_leaves_its_sequence_free(
    client: fl.FlightClient, table: Table, origin: str
) -> None:
    _send(client, table, origin, 1, 1)
    wrong = pa.record_batch({"v": pa.array(["text"])})
    with pytest.raises(pa.ArrowInvalid, match="'v'"):
        put(client, table, wrong, origin=origin, metadata=[{"sequence": 2}])
    (answer,) = _send(client, table, origin, 2, 2)
    assert not answer["duplicate"]
    assert rows(client, table) == list(range(10, 30))


def test_a_newer_stream_of_an_origin_ends_the_older(
    client: fl.FlightClient, table: Table, origin: str
) -> None:
    batch = numbers(0, 1)
    older = Stream(client, writing(table, origin), batch.schema)
    older.write(batch, {"sequence": 1})
    newer = Stream(client, writing(table, origin), batch.schema)
    newer.write(numbers(1, 1), {"sequence": 2})
    with pytest.raises(fl.FlightUnavailableError) as error:
        older.write(numbers(9, 1), {"sequence": 3})
    assert extra(error.value)["code"] == "superseded"
    newer.write(numbers(2, 1), {"sequence": 3})
    newer.rest()
    newer.close()
    assert rows(client, table) == [0, 1, 2]


def test_two_hundred_refusals_of_clients_that_wait_or_send_on_do_not_crash_the_daemon(
    shared: Daemon, client: fl.FlightClient, table: Table, origin: str
) -> None:
    # Freed with the call was what the server's reading thread still waited in.
    batch = numbers(0, 1)
    for attempt in range(200):
        first = attempt * 40
        older = Stream(client, writing(table, origin), batch.schema)
        older.write(batch, {"sequence": first})
        with Stream(client, writing(table, origin), batch.schema) as newer:
            newer.write(batch, {"sequence": first + 1})
            newer.writer.done_writing()
        with suppress(*ARROW_AND_FLIGHT):  # a send may see the end before we look for it
            for n in range(1 if attempt % 2 else 30):
                older.send(batch, {"sequence": first + 2 + n})
            assert older.answer() is None
        with pytest.raises(fl.FlightUnavailableError) as error:
            older.close()
        assert extra(error.value)["code"] == "superseded"
    assert shared.process.poll() is None
    assert len(rows(client, table)) == 400


def test_streams_of_one_origin_into_two_tables_live_side_by_side(
    client: fl.FlightClient, table: Table, origin: str
) -> None:
    other = (table[0], table[1] + "-other")
    batch = numbers(0, 1)
    with (
        Stream(client, writing(table, origin), batch.schema) as one,
        Stream(client, writing(other, origin), batch.schema) as two,
    ):
        for n in range(3):
            one.write(batch, {"sequence": n})
            two.write(batch, {"sequence": n})
        for stream in (one, two):
            stream.writer.done_writing()
    assert len(rows(client, table)) == len(rows(client, other)) == 3


def test_the_action_origins_tells_of_one_or_all(
    client: fl.FlightClient, table: Table, origin: str
) -> None:
    assert act(client, "origins", origin=origin) == []
    with Stream(client, writing(table, origin), numbers(0, 1).schema) as stream:
        stream.write(numbers(0, 1), {"sequence": 17})
        assert _origin(client, origin) == {
            "origin": origin,
            "memory_sequence": 17,
            "durable_sequence": None,
            "open": True,
        }
        stream.writer.done_writing()
    persist(client, table)
    assert _origin(client, origin)["durable_sequence"] == 17
    assert origin in [found["origin"] for found in act(client, "origins")]


def test_durable_waits_for_all_partitions_and_tables_of_the_origin(
    client: fl.FlightClient, table: Table, origin: str
) -> None:
    other = (table[0], table[1] + "-other")
    _send(client, table, origin, 1, 1)
    _send(client, other, origin, 2, 2)
    _send(client, table, origin, 3, 3)
    persist(client, table)
    # 2 is in no file yet, so that 3 cannot count although it is in one.
    assert _origin(client, origin)["durable_sequence"] == 1
    persist(client, other)
    assert _origin(client, origin)["durable_sequence"] == 3


@pytest.mark.parametrize("persisted", [False, True])
@pytest.mark.parametrize("clean", [False, True])
def test_a_duplicate_is_one_after_kill_and_stop(
    tmp_path: Path, table: Table, persisted: bool, clean: bool
) -> None:
    with Daemon.start(tmp_path / "data") as daemon:
        with fl.connect(daemon.flight) as client:
            _send(client, table, "o", 1, 5)
            if persisted:
                persist(client, table)
                _send(client, table, "o", 6, 7)
        if clean:
            assert daemon.terminate() == 0
        else:
            daemon.kill()
        with daemon.again() as restarted, fl.connect(restarted.flight) as client:
            last = 7 if persisted else 5
            found = _origin(client, "o")
            assert found["memory_sequence"] == last
            answers = _send(client, table, "o", 1, last + 1)
            assert [answer["duplicate"] for answer in answers] == [True] * last + [False]
            assert answers[0]["first"]
            assert rows(client, table) == list(range(10, 10 * (last + 2)))


def test_a_client_that_repeats_after_each_kill_adds_each_row_once(
    tmp_path: Path, table: Table
) -> None:
    daemon = Daemon.start(tmp_path / "data", persist__max_age="200ms")
    acknowledged = -1
    for kill_after in (30, 70, 110, 150):
        with fl.connect(daemon.flight) as client:
            batch = events(0, 1)
            stream = Stream(client, writing(table, "o"), batch.schema)
            # Everything since the last answer that it has seen, and some that it has.
            for n in range(max(0, acknowledged - 5), kill_after + 20):
                stream.send(events(n * 10, 10, days=3), {"sequence": n})
            n = max(0, acknowledged - 5)
            while n < kill_after:
                assert stream.answer() is not None
                acknowledged = max(acknowledged, n)
                n += 1
            daemon.kill()
            with suppress(*ARROW_AND_FLIGHT):
                stream.rest()
            with pytest.raises(ARROW_AND_FLIGHT):
                stream.close()
        daemon = daemon.again()
    with daemon, fl.connect(daemon.flight) as client:
        _send(client, table, "o", acknowledged - 5, 200)
        assert rows(client, table) == list(range(2010))
        persist(client, table)
        assert rows(client, table) == list(range(2010))


BAD_METADATA: list[tuple[Any, str]] = [
    (b"{", "app_metadata"),
    (b"[1]", "app_metadata"),
    (b"\xff", "app_metadata"),
    ({"sequense": 1}, "sequense"),
    ({"sequence": "1"}, "sequence"),
    ({"sequence": 1.5}, "sequence"),
    ({"sequence": -1}, "sequence"),
    ({"sequence": 2**64}, "sequence"),
    ({"sequence": 1, "checkpoint": {"partition": "p"}}, "state"),
    ({"sequence": 1, "checkpoint": {"partition": "p", "state": "*"}}, "base64"),
    ({"sequence": 1, "checkpoint": {"partition": "p", "state": "", "x": 1}}, "x"),
]


@pytest.mark.parametrize(("metadata", "named"), BAD_METADATA, ids=lambda value: str(value)[:40])
def test_malformed_metadata_is_refused_by_name(
    client: fl.FlightClient, table: Table, origin: str, metadata: Any, named: str
) -> None:
    put(client, table, numbers(0, 1))
    with pytest.raises(pa.ArrowInvalid, match=named):
        put(client, table, numbers(1, 1), origin=origin, metadata=[metadata])
    assert rows(client, table) == [0]


def test_a_sequence_needs_an_origin(client: fl.FlightClient, table: Table) -> None:
    with pytest.raises(pa.ArrowInvalid, match="origin"):
        put(client, table, numbers(0, 1), metadata=[{"sequence": 1}])


def test_a_batch_may_carry_a_checkpoint(client: fl.FlightClient, table: Table, origin: str) -> None:
    state = base64.b64encode(b"offset 812").decode()
    metadata = {"sequence": 17, "checkpoint": {"partition": "topic-0", "state": state}}
    (answer,) = put(client, table, numbers(0, 1), origin=origin, metadata=[metadata])
    assert answer["accepted"]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "type"),
        ({"type": "write"}, "namespace|table"),
        ({"type": "write", "namespace": "it", "table": 3}, "table"),
        ({"type": "write", "namespace": "it", "table": "t", "orign": "x"}, "orign"),
        ({"type": "write", "namespace": "it", "table": "t", "origin": ""}, "origin"),
        ({"type": "write", "namespace": "it", "table": "t", "origin": "x" * 300}, "origin"),
        ({"type": "wrote", "namespace": "it", "table": "t"}, "wrote"),
        ({"namespace": "it", "table": "t"}, "type"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_malformed_command_is_refused_by_name(
    client: fl.FlightClient, fields: dict[str, Any], named: str
) -> None:
    with (
        pytest.raises(pa.ArrowInvalid, match=named),
        Stream(client, command(**fields), numbers(0, 1).schema) as stream,
    ):
        stream.write(numbers(0, 1))


@pytest.mark.parametrize("kind", ["delete", "sync"])
def test_what_comes_later_is_unimplemented(
    client: fl.FlightClient, table: Table, kind: str
) -> None:
    put(client, table, numbers(0, 1))
    descriptor = command(type=kind, namespace=table[0], table=table[1], origin="o")
    with (
        pytest.raises(pa.ArrowNotImplementedError, match=kind),
        Stream(client, descriptor, numbers(0, 1).schema) as stream,
    ):
        stream.write(numbers(0, 1))


@pytest.mark.parametrize("path", [[], ["it"], ["it", "a", "b"]])
def test_a_path_that_is_not_namespace_and_table_is_refused(
    client: fl.FlightClient, path: list[str]
) -> None:
    descriptor = fl.FlightDescriptor.for_path(*path)
    with (
        pytest.raises(pa.ArrowInvalid, match="namespace"),
        Stream(client, descriptor, numbers(0, 1).schema) as stream,
    ):
        stream.write(numbers(0, 1))


def test_a_batch_without_rows_is_answered_and_adds_nothing(
    client: fl.FlightClient, table: Table, origin: str
) -> None:
    empty = numbers(0, 0)
    (answer,) = put(client, table, empty, origin=origin, metadata=[{"sequence": 4}])
    assert answer["accepted"]
    assert answer["memory_sequence"] == 4
    (again,) = put(client, table, numbers(0, 1), origin=origin, metadata=[{"sequence": 4}])
    assert again["duplicate"]
    assert query(client, table).num_rows == 0


def test_sequences_of_the_ingester_rise_over_all_streams(
    client: fl.FlightClient, table: Table
) -> None:
    found = []
    for i in range(20):
        (answer,) = put(client, (table[0], f"{table[1]}-{i % 3}"), numbers(i, 1))
        found.append(answer["sequence"])
    assert found == sorted(set(found))
