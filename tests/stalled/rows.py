"""The rows of the table: writer and number determine everything but the filling.

Pure functions. A row takes about 100 bytes in memory, of which Parquet saves about a third.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pyarrow as pa

NAMESPACE, TABLE = "stalled", "wide"
PARTITIONS = 16
FILLING_BYTES = 64
ROW_BYTES = 96
LOADER = 0
"""The writer of the rows that exist before any reader starts."""

SCHEMA = pa.schema(
    [
        ("part", pa.string()),
        ("writer", pa.int32()),
        ("n", pa.int64()),
        ("v", pa.float64()),
        ("filling", pa.string()),
    ]
)


def create_body() -> dict[str, Any]:
    """The body of ``create_table``."""
    return {
        "namespace": NAMESPACE,
        "table": TABLE,
        "schema": base64.b64encode(SCHEMA.serialize().to_pybytes()).decode(),
        "partition_by": ["identity(part)"],
    }


def value_of(n: np.ndarray) -> np.ndarray:
    """The value of the column ``v``."""
    return (n * 2654435761 % 1_000_003).astype(np.float64)


def batch_of(writer: int, start: int, count: int) -> pa.RecordBatch:
    """Rows ``start .. start + count`` of a writer, spread over all partitions in long runs."""
    n = np.arange(start, start + count, dtype=np.int64)
    letters = np.random.default_rng(start).integers(97, 123, count * FILLING_BYTES, dtype=np.uint8)
    offsets = np.arange(count + 1, dtype=np.int32) * FILLING_BYTES
    filling = pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(letters))
    names = pa.array([f"p{index:02}" for index in range(PARTITIONS)])
    return pa.record_batch(
        [
            names.take(pa.array(n // 1000 % PARTITIONS)),
            pa.array(np.full(count, writer, np.int32)),
            pa.array(n),
            pa.array(value_of(n)),
            filling,
        ],
        schema=SCHEMA,
    )


class Seen:
    """Counts the rows of one reader."""

    def __init__(self) -> None:
        self.rows = 0
        self.wrong = 0
        self._times: dict[int, np.ndarray] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Add one more part."""
        writer, n = batch.column("writer").to_numpy(), batch.column("n").to_numpy()
        self.rows += batch.num_rows
        self.wrong += int((batch.column("v").to_numpy() != value_of(n)).sum())
        for each in np.unique(writer).tolist():
            own = n[writer == each]
            first, last = int(own.min()), int(own.max())
            times = self._times.get(each, np.zeros(0, np.uint16))
            if last >= len(times):
                # Doubled, so that the amortized cost of adding a row is constant.
                times = np.pad(times, (0, max(last + 1, 2 * len(times)) - len(times)))
            times[first : last + 1] += np.bincount(own - first).astype(np.uint16)
            self._times[each] = times

    def prefixes(self) -> dict[int, int] | None:
        """Per writer, how many of its first rows were read; ``None`` unless each was read once."""
        found = {}
        for writer, times in self._times.items():
            rows = int(np.count_nonzero(times))
            if not (times[:rows] == 1).all():
                return None
            found[writer] = rows
        return None if self.wrong else found
