"""A baseline without an ingester: sort a buffer's rows with pyarrow and write a file.

pyarrow's own calls with the settings of the daemon's files: the same columns sorted, the same
number of rows in a file. Rows are in memory before the clock starts.
"""

from __future__ import annotations

import time
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from persist.parquet.encode import ROW_GROUP_ROWS
from tests.bench.children import Child, answer_commands
from tests.bench.rows import batches_of

_ORDER = [("region", "ascending"), ("host", "ascending"), ("time", "ascending")]
_BATCH_ROWS = 10_000


def write_sorted(arrived: pa.Table, path: Path) -> int:
    """Sort and write; return the file's bytes."""
    pq.write_table(
        # pyarrow sorts one chunk nearly twice as fast as two hundred.
        arrived.combine_chunks().sort_by(_ORDER),
        path,
        compression="zstd",
        use_dictionary=["host", "region"],
        write_statistics=True,
        write_page_index=True,
        store_schema=False,
        version="2.6",
        row_group_size=ROW_GROUP_ROWS,
    )
    return path.stat().st_size


class _Writer:
    def __init__(self, rows: int, path: str) -> None:
        self._arrived = pa.Table.from_batches(batches_of(rows, _BATCH_ROWS, seed=0))
        self._path = Path(path)

    def act(self, seconds: float) -> tuple[int, float]:
        """Rewrite one file for this long; return rows and seconds."""
        began = time.monotonic()
        rows = 0
        while time.monotonic() - began < seconds:
            write_sorted(self._arrived, self._path)
            rows += self._arrived.num_rows
        return rows, time.monotonic() - began


def _main(pipe: Connection, rows: int, path: str) -> None:
    # One processor each, so two processes show the rate of two processors.
    pa.set_cpu_count(1)
    writer = _Writer(rows, path)
    answer_commands(pipe, writer.act)


def plain_rate(folder: Path, file_rows: int, seconds: float, processes: int) -> float:
    """Return the rows a second that this many processes sort and write together."""
    children = [
        Child(_main, file_rows, str(folder / f"plain-{number}.parquet"))
        for number in range(processes)
    ]
    try:
        for child in children:
            # Warms up, and makes all processes ready.
            child.send(0.1)
        for child in children:
            child.receive()
        for child in children:
            child.send(seconds)
        found: list[tuple[int, float]] = [child.receive() for child in children]
        return sum(rows / taken for rows, taken in found)
    finally:
        for child in children:
            child.end()
