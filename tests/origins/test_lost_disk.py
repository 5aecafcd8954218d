"""The log is lost and the manifest remains: it gives the resume position, part by part."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow.flight as fl
import pytest

from persist.manifest import Manifest, commit_patiently, one_time_writer
from persist.store import open_store
from persist.table import TableDefinition
from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until
from tests.drivers.wire import describe, put
from tests.fencing.pairs import start, store_url
from tests.origins.senders import (
    ORIGIN,
    TABLE,
    duplicates,
    in_files,
    known,
    padded,
    persisted,
    rows_of,
    seen,
    send,
)


@pytest.fixture
def emptied(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon that has lost its disk.

    Sequence 1 is entirely in files; of 2 only the first day is; 3 and 4 are not.
    """
    with start(tmp_path, "d", persist__max_partition_bytes="32KiB") as daemon:
        send(daemon, [1])
        persisted(daemon)
        with fl.connect(daemon.flight) as client:
            put(
                client,
                TABLE,
                padded(2, large=0, small=1),
                origin=ORIGIN,
                metadata=[{"sequence": 2}],
            )
            until(lambda: describe(client, TABLE)["persisted"]["rows"] == 19, "day 0 to persist")
        send(daemon, [3, 4])
        daemon.kill()
        shutil.rmtree(daemon.data_dir)
        with daemon.again() as again:
            assert again.ready["epoch"] == 2
            yield again


def again(daemon: Daemon, numbers: list[int]) -> list[bool]:
    """Send each sequence again in its own stream, unchanged; whether each was a duplicate."""
    found = []
    for number in numbers:
        if number == 2:
            with fl.connect(daemon.flight) as client:
                found += put(
                    client,
                    TABLE,
                    padded(2, large=0, small=1),
                    origin=ORIGIN,
                    metadata=[{"sequence": 2}],
                )
        else:
            found += send(daemon, [number])
    return duplicates(found)


def test_the_manifest_tells_where_to_go_on(emptied: Daemon, tmp_path: Path) -> None:
    (origin,) = Manifest(open_store(store_url(tmp_path)), *TABLE).load().origins.values()
    assert (origin.name, origin.owner_id, origin.complete) == (ORIGIN, "tested", 1)
    assert [(ahead.values, ahead.seq) for ahead in origin.ahead] == [(("2026-11-21",), 2)]
    told = known(emptied)
    assert told == {
        "origin": ORIGIN,
        "memory_sequence": 1,
        "durable_sequence": 1,
        "files_sequence": 1,
        "open": False,
    }
    assert known(emptied, "stranger") is None


def test_a_batch_that_spans_both_is_taken_where_it_is_missing(
    emptied: Daemon, tmp_path: Path
) -> None:
    assert again(emptied, [2, 3, 4, 5]) == [False, False, False, False]
    assert seen(emptied) == rows_of(range(1, 6))
    persisted(emptied)
    assert seen(emptied) == in_files(tmp_path) == rows_of(range(1, 6))
    told = known(emptied)
    assert told is not None
    assert told["durable_sequence"] == 5


def test_a_batch_that_spans_both_is_taken_where_it_is_missing_by_the_partitions_of_then(
    emptied: Daemon, tmp_path: Path
) -> None:
    """The table gets another partitioning before the batch is repeated."""
    emptied.kill()
    manifest = Manifest(open_store(store_url(tmp_path)), *TABLE)
    by_host = TableDefinition.of_state(manifest.load()).with_spec(["bucket(4, i)"])
    commit_patiently(manifest, None, [by_host.spec_action()], one_time_writer("test"))
    with emptied.again() as third:
        assert again(third, [2, 3]) == [False, False]
        assert seen(third) == rows_of(range(1, 4))
        third.kill()  # the log has the missing rows of sequence 2
    with emptied.again() as fourth:
        assert again(fourth, [2, 3, 4]) == [True, True, False]
        persisted(fourth)
        assert seen(fourth) == in_files(tmp_path) == rows_of(range(1, 5))
        told = known(fourth)
        assert told is not None
        assert told["durable_sequence"] == 4


def test_everything_sent_again_adds_what_was_lost(emptied: Daemon, tmp_path: Path) -> None:
    assert again(emptied, [1, 2, 3, 4, 1, 2]) == [True, False, False, False, True, True]
    emptied.kill()
    with emptied.again() as third:
        assert seen(third) == rows_of(range(1, 5))
        assert again(third, [1, 2, 3, 4]) == [True] * 4
        persisted(third)
    assert in_files(tmp_path) == rows_of(range(1, 5))


def test_who_goes_on_is_told_in_the_first_answer_and_may_go_back(
    emptied: Daemon, tmp_path: Path
) -> None:
    """The client does not know yet that rows were lost."""
    (answer,) = send(emptied, [5])
    assert (answer["first"], answer["duplicate"]) == (True, False)
    assert (answer["memory_sequence"], answer["durable_sequence"]) == (5, 1)
    assert again(emptied, [2, 3, 4, 5, 6]) == [False, False, False, True, False]
    persisted(emptied)
    assert seen(emptied) == in_files(tmp_path) == rows_of(range(1, 7))
    emptied.kill()
    shutil.rmtree(emptied.data_dir)
    with emptied.again() as third:
        assert again(third, [1, 2, 3, 4, 5, 6]) == [True] * 6
        assert seen(third) == rows_of(range(1, 7))


def test_who_goes_on_without_going_back_is_durable_again(emptied: Daemon, tmp_path: Path) -> None:
    send(emptied, [8, 9])
    persisted(emptied)
    (answer,) = send(emptied, [10])
    assert answer["durable_sequence"] == 9
    emptied.kill()
    shutil.rmtree(emptied.data_dir)
    with emptied.again() as third:
        assert again(third, [8, 9, 10, 3]) == [True, True, False, False]
        persisted(third)
    assert len(in_files(tmp_path)) == 19 + 40
