"""The rows that writers send: a row's table, writer and number determine all its columns.

Pure functions. A row that is read back is right if its columns match its writer and number, so
an unsent row cannot pass for a sent one.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

NAMESPACE = "crash"
FIRST_DAY_US = 1_790_000_000_000_000
DAY_US = 86_400_000_000
HOSTS = ["rack=1/a", "rack=1/b", "rack 2", "007", "ü%", ""]
"""Values that are awkward as folder names."""

SCHEMA = pa.schema(
    [
        ("time", pa.timestamp("us", "UTC")),
        ("host", pa.string()),
        ("writer", pa.int32()),
        ("n", pa.int64()),
        ("v", pa.float64()),
    ]
)


@dataclass(frozen=True, slots=True)
class TableKind:
    """One of the campaign's tables."""

    name: str
    partition_by: tuple[str, ...]
    primary_key: tuple[str, ...] = ()

    def create_body(self) -> dict[str, Any]:
        """The body of ``create_table``."""
        return {
            "namespace": NAMESPACE,
            "table": self.name,
            "schema": base64.b64encode(SCHEMA.serialize().to_pybytes()).decode(),
            "partition_by": list(self.partition_by),
            "primary_key": list(self.primary_key),
        }


TABLES = (
    TableKind("by_day", ("day(time)",)),
    TableKind("by_host", ("identity(host)",)),
    TableKind("by_bucket", ("bucket(4, n)",)),
    TableKind("plain", ()),
    # Keys are unique, and most files are replaced by the host's next flush.
    TableKind("keyed", ("identity(host)",), ("host", "time", "writer")),
)


def columns_of(writer: int | np.ndarray, n: np.ndarray) -> dict[str, np.ndarray]:
    """The true columns of one writer's rows, or of one writer per row.

    ``time`` is in microseconds, ``host`` an index into :data:`HOSTS`. Neighbouring numbers lie
    in different days, hosts and buckets, so that most batches span several partitions.
    """
    return {
        "time": FIRST_DAY_US + (n * 5 + writer) % 3 * DAY_US + n,
        "host": (n * 31 + writer) % len(HOSTS),
        "v": (n * 2654435761 % 1_000_003).astype(np.float64) + writer / 16,
    }


def batch_of(writer: int, start: int, count: int) -> pa.RecordBatch:
    """Rows ``start .. start + count`` of a writer, with :data:`SCHEMA`."""
    n = np.arange(start, start + count, dtype=np.int64)
    columns = columns_of(writer, n)
    hosts = pa.DictionaryArray.from_arrays(pa.array(columns["host"].astype(np.int8)), HOSTS)
    return pa.record_batch(
        [
            pa.array(columns["time"], pa.timestamp("us", "UTC")),
            hosts.cast(pa.string()),
            pa.array(np.full(count, writer, np.int32)),
            pa.array(n),
            pa.array(columns["v"]),
        ],
        schema=SCHEMA,
    )


def wrong_rows(rows: pa.Table) -> int:
    """Count the rows with a column that does not match their writer and number."""
    writer = rows["writer"].to_numpy().astype(np.int64)
    n = rows["n"].to_numpy()
    wrong = np.zeros(len(n), bool)
    expected = columns_of(writer, n)
    if "time" in rows.column_names:
        wrong |= rows["time"].cast(pa.int64()).to_numpy() != expected["time"]
    if "host" in rows.column_names:
        hosts = pa.array(HOSTS).take(pa.array(expected["host"]))
        wrong |= ~pc.fill_null(pc.equal(rows["host"], hosts), False).to_numpy()
    if "v" in rows.column_names:
        wrong |= rows["v"].to_numpy() != expected["v"]
    return int(wrong.sum())
