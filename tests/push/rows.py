"""The rows of a run: pushed editions, and rows streamed between them.

An edition has ``PUSHED`` rows, all with its number; streamed rows have the edition 0 and numbers
of their own. An answer alone thus shows which version it is from, and whether it is complete.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

NAMESPACE, TABLE = "shop", "visits"
PUSHED = 1000
"""Rows of an edition."""
COLUMNS = ["edition", "id"]
"""The columns that readers query."""
SCHEMA = pa.schema(
    [("edition", pa.int64()), ("id", pa.int64()), ("host", pa.string()), ("price", pa.float64())]
)


def edition(number: int, *, bad: bool = False) -> pa.Table:
    """Return the rows of an edition; in a bad one the column ``price`` is null."""
    ids = range(PUSHED)
    columns = {
        "edition": [number] * PUSHED,
        "id": list(ids),
        "host": [f"h{n % 50}" for n in ids],
        "price": [None if bad else n / 100 for n in ids],
    }
    return pa.table(columns, schema=SCHEMA)


def streamed(numbers: range) -> pa.RecordBatch:
    """Return rows as a client streams them, one per number."""
    columns = {
        "edition": [0] * len(numbers),
        "id": list(numbers),
        "host": ["streamed"] * len(numbers),
        "price": [1.0] * len(numbers),
    }
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


class Seen(NamedTuple):
    """The content of an answer: one complete edition, and streamed rows."""

    edition: int
    streamed: frozenset[int]


class Mixed(AssertionError):
    """An answer mixes versions, is incomplete, or has a row twice."""


def seen(answer: pa.Table) -> Seen:
    """Return the content of an answer.

    Raises:
        Mixed: it has rows of two editions, only part of one, or a row twice.
    """
    editions = answer["edition"].to_numpy()
    ids = answer["id"].to_numpy()
    faults = list(_faults(editions, ids))
    if faults:
        raise Mixed(f"{answer.num_rows} rows: {'; '.join(faults)}")
    return Seen(int(editions.max()), frozenset(ids[editions == 0].tolist()))


def _faults(editions: npt.NDArray[np.int64], ids: npt.NDArray[np.int64]) -> Iterator[str]:
    found, counts = np.unique(editions[editions != 0], return_counts=True)
    if len(found) != 1:
        rows = dict(zip(found.tolist(), counts.tolist(), strict=True))
        yield f"rows by edition are {rows}, and there should be one"
    for number in found:
        its = np.unique(ids[editions == number])
        if len(its) != PUSHED or (editions == number).sum() != PUSHED or its[-1] != PUSHED - 1:
            yield f"edition {number} has not {PUSHED} rows, each once"
    streamed_ids, times = np.unique(ids[editions == 0], return_counts=True)
    if (times > 1).any():
        yield f"streamed rows are there more than once: {streamed_ids[times > 1][:5].tolist()}"
