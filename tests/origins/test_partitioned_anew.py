"""A table's partitioning changes while an origin's rows wait; rows in files stay known."""

from __future__ import annotations

from pathlib import Path

import pyarrow.flight as fl
import pytest

from persist.manifest import Manifest, commit_patiently, one_time_writer
from persist.store import open_store
from persist.table import TableDefinition
from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until
from tests.drivers.wire import describe, put, query
from tests.fencing.pairs import start, store_url
from tests.origins.senders import (
    ORIGIN,
    TABLE,
    in_files,
    padded,
    persisted,
    rows_of,
    seen,
    send,
)

PADDED = {2: {"large": 0, "small": 1}, 3: {"large": 0, "small": 0}}
"""Days of the rows of a sequence; the rows of ``large`` are flushed at once."""


def send_padded(daemon: Daemon, *numbers: int) -> None:
    for number in numbers:
        batch = padded(number, **PADDED[number])
        with fl.connect(daemon.flight) as client:
            put(client, TABLE, batch, origin=ORIGIN, metadata=[{"sequence": number}])


def rows_persisted(daemon: Daemon) -> int:
    with fl.connect(daemon.flight) as client:
        found: int = describe(client, TABLE)["persisted"]["rows"]
    return found


def partitioned_by(folder: Path, daemon: Daemon, *fields: str) -> None:
    """Commit another partition spec, and have the daemon read it."""
    manifest = Manifest(open_store(store_url(folder)), *TABLE)
    spec = TableDefinition.of_state(manifest.load()).with_spec(fields).spec_action()
    state = commit_patiently(manifest, None, [spec], one_time_writer("test"))
    with fl.connect(daemon.flight) as client:
        query(client, TABLE, scope="buffered", version=state.version)
        assert tuple(describe(client, TABLE)["partition_by"]) == fields


@pytest.mark.parametrize("first_dies", [True, False])
def test_rows_that_wait_by_an_earlier_spec_are_not_taken_for_those_of_a_later_one(
    tmp_path: Path, first_dies: bool
) -> None:
    with (
        start(tmp_path, "a", id="a", persist__max_partition_bytes="32KiB") as first,
        start(tmp_path, "b", id="b") as second,
    ):
        send(first, [1])
        persisted(first)
        send_padded(first, 2)  # all but one row are in files
        until(lambda: rows_persisted(first) == 19, "what is large to persist")
        partitioned_by(tmp_path, first)
        send_padded(first, 3)  # would have all its rows in partitions that are in files
        until(lambda: rows_persisted(first) == 29, "what is large to persist")
        if first_dies:
            first.kill()
        send_padded(second, 2, 3)
        persisted(second)
        if not first_dies:
            assert first.terminate() == 0
        assert in_files(tmp_path) == rows_of(range(1, 4))


def test_an_origin_goes_on_by_the_later_spec_when_none_of_its_rows_wait(tmp_path: Path) -> None:
    with start(tmp_path, "a", id="a") as daemon:
        send(daemon, [1, 2])
        partitioned_by(tmp_path, daemon)
        send(daemon, [3])
        assert buffered_partitions(daemon) == 3
        daemon.kill()
        with daemon.again() as again:
            send(again, [4])
            assert buffered_partitions(again) == 3
            persisted(again)
            send(again, [5])
            assert buffered_partitions(again) == 1
            again.kill()
        with daemon.again() as again:
            assert seen(again) == rows_of(range(1, 6))
            send(again, [5, 6])
            persisted(again)
            assert seen(again) == in_files(tmp_path) == rows_of(range(1, 7))


def buffered_partitions(daemon: Daemon) -> int:
    with fl.connect(daemon.flight) as client:
        found: int = describe(client, TABLE)["buffered"]["partitions"]
    return found
