"""A repeated batch adds no rows, and answers report the origin's position."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.wire import (
    Stream,
    Table,
    act,
    numbers,
    origin_of,
    persist,
    put,
    put_sequences,
    query,
    rows,
    writing,
)


def test_answers_tell_what_is_in_memory_and_what_is_in_files(
    client: fl.FlightClient, table: Table, origin: str
) -> None:
    first, second = put_sequences(client, table, origin, 1, 2)
    assert set(first) == {
        "accepted",
        "sequence",
        "epoch",
        "duplicate",
        "memory_sequence",
        "durable_sequence",
        "files_sequence",
        "first",
        "ack",
    }
    assert (first["first"], second["first"]) == (True, False)
    assert (first["memory_sequence"], second["memory_sequence"]) == (1, 2)
    assert second["durable_sequence"] is None
    persist(client, table)
    (third,) = put_sequences(client, table, origin, 3, 3)
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
    put_sequences(client, table, origin, 1, 5)
    again = put_sequences(client, table, origin, 3, 7)
    assert [answer["duplicate"] for answer in again] == [True, True, True, False, False]
    assert all(answer["accepted"] for answer in again)
    assert rows(client, table) == list(range(10, 80))


def test_a_duplicate_is_one_after_persist_too(
    client: fl.FlightClient, table: Table, origin: str
) -> None:
    put_sequences(client, table, origin, 1, 5)
    persist(client, table)
    again = put_sequences(client, table, origin, 1, 6)
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


def test_the_largest_sequence_is_a_sequence_like_any_other(
    client: fl.FlightClient, table: Table, origin: str
) -> None:
    newest = 2**63 - 1
    first, last = [{"sequence": newest - 1}], [{"sequence": newest}]
    put(client, table, numbers(0, 1), origin=origin, metadata=first)
    (answer,) = put(client, table, numbers(1, 1), origin=origin, metadata=last)
    assert (answer["duplicate"], answer["memory_sequence"]) == (False, newest)
    (again,) = put(client, table, numbers(1, 1), origin=origin, metadata=last)
    assert again["duplicate"]
    persist(client, table)
    (again,) = put(client, table, numbers(1, 1), origin=origin, metadata=last)
    assert (again["duplicate"], again["durable_sequence"]) == (True, newest)
    assert rows(client, table) == [0, 1]


def test_tables_and_origins_have_sequences_of_their_own(
    client: fl.FlightClient, table: Table, origin: str
) -> None:
    other = (table[0], table[1] + "-other")
    for where, who in ((table, origin), (other, origin), (table, origin + "-2")):
        answers = put_sequences(client, where, who, 1, 2)
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


@pytest.mark.parametrize("sequence", [9, 10])
def test_a_sequence_that_does_not_rise_within_a_stream_is_refused(
    client: fl.FlightClient, table: Table, origin: str, sequence: int
) -> None:
    """The batch was answered as a duplicate, although none of its rows had been kept."""
    stream = Stream(client, writing(table, origin), numbers(0, 1).schema)
    stream.write(numbers(0, 1), {"sequence": 10})
    with pytest.raises(pa.ArrowInvalid, match=f"sequence {sequence} comes after 10"):
        stream.write(numbers(1, 1), {"sequence": sequence})
    # A batch that is repeated after a lost answer arrives in a new stream.
    (again,) = put(client, table, numbers(0, 1), origin=origin, metadata=[{"sequence": 10}])
    assert again["duplicate"]
    put(client, table, numbers(2, 1), origin=origin, metadata=[{"sequence": 11}])
    assert rows(client, table) == [0, 2]


def test_a_sequence_that_does_not_rise_is_refused_behind_others_that_are_on_their_way(
    client: fl.FlightClient, table: Table, origin: str
) -> None:
    stream = Stream(client, writing(table, origin), numbers(0, 1).schema)
    for i in [*range(200), 5]:
        stream.send(numbers(i, 1), {"sequence": i})
    answers = stream.rest()
    with pytest.raises(pa.ArrowInvalid, match="sequence 5 comes after 199"):
        stream.close()
    assert all(answer["accepted"] and not answer["duplicate"] for answer in answers)
    assert rows(client, table) == list(range(200))


def test_a_refused_batch_leaves_its_sequence_free(
    client: fl.FlightClient, table: Table, origin: str
) -> None:
    put_sequences(client, table, origin, 1, 1)
    wrong = pa.record_batch({"v": pa.array(["text"])})
    with pytest.raises(pa.ArrowInvalid, match="'v'"):
        put(client, table, wrong, origin=origin, metadata=[{"sequence": 2}])
    (answer,) = put_sequences(client, table, origin, 2, 2)
    assert not answer["duplicate"]
    assert rows(client, table) == list(range(10, 30))


def test_the_action_origins_tells_of_one_or_all(
    client: fl.FlightClient, table: Table, origin: str
) -> None:
    assert act(client, "origins", origin=origin) == []
    with Stream(client, writing(table, origin), numbers(0, 1).schema) as stream:
        stream.write(numbers(0, 1), {"sequence": 17})
        assert origin_of(client, origin) == {
            "origin": origin,
            "memory_sequence": 17,
            "durable_sequence": None,
            "files_sequence": None,
            "open": True,
        }
        stream.writer.done_writing()
    persist(client, table)
    assert origin_of(client, origin)["durable_sequence"] == 17
    assert origin in [found["origin"] for found in act(client, "origins")]


def test_durable_waits_for_all_partitions_and_tables_of_the_origin(
    client: fl.FlightClient, table: Table, origin: str
) -> None:
    other = (table[0], table[1] + "-other")
    put_sequences(client, table, origin, 1, 1)
    put_sequences(client, other, origin, 2, 2)
    put_sequences(client, table, origin, 3, 3)
    persist(client, table)
    # Sequence 2 is in no file yet, so 3 does not count although its rows are in files.
    assert origin_of(client, origin)["durable_sequence"] == 1
    persist(client, other)
    assert origin_of(client, origin)["durable_sequence"] == 3


def test_a_batch_without_rows_is_answered_and_adds_nothing(
    client: fl.FlightClient, table: Table, origin: str
) -> None:
    empty = numbers(0, 0)
    (answer,) = put(client, table, empty, origin=origin, metadata=[{"sequence": 4}])
    assert answer["accepted"]
    assert answer["memory_sequence"] == 4
    (again,) = put(client, table, empty, origin=origin, metadata=[{"sequence": 4}])
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
