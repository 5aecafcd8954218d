"""A log is replayed whose origin left and came back, with some of its rows in files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl

from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until
from tests.drivers.wire import extra, put
from tests.fencing.pairs import on_day, start
from tests.origins.senders import ORIGIN, TABLE, in_files, padded, persisted, rows_of


def _batch(number: int) -> pa.RecordBatch:
    """Rows on day 0, on day 1, or on both; those on day 1 are flushed because of their size."""
    if number % 3 == 0:
        like = padded(number, large=0, small=0)
        return on_day(0, 10 * number, 10).select(like.schema.names)
    return padded(number, large=1, small=1 if number % 3 == 1 else 0)


def _send(daemon: Daemon, *numbers: int) -> None:
    with fl.connect(daemon.flight) as client:
        metadata = [{"sequence": number} for number in numbers]
        while True:
            try:
                put(client, TABLE, *map(_batch, numbers), origin=ORIGIN, metadata=metadata)
                return
            except fl.FlightUnavailableError as error:
                # Rows from before the origin's move are not in files yet.
                if extra(error)["code"] != "store":
                    raise


def test_rows_that_no_file_has_are_no_duplicates_below_some_that_are_in_files(
    tmp_path: Path,
) -> None:
    settings = {"persist__max_partition_bytes": "32KiB", "manifest__refresh": "10ms"}
    with start(tmp_path, "a", id="a", **settings) as a, start(tmp_path, "b", id="b") as b:
        _send(a, 0, 1, 2, 4, 6, 8)
        until(lambda: len(in_files(tmp_path)) == 38, "day 1 in files")
        _send(b, 0)
        _send(a, 0)
        a.kill()
        with a.again() as a:
            _send(a, 1, 2, 4, 6, 8, 9)
            persisted(a)
            persisted(b)
            assert in_files(tmp_path) == rows_of([0, 1, 2, 4, 6, 8, 9])
