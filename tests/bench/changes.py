"""Changes of a keyed table, generated from a seed.

A table has the keys 0 to n - 1. Each message changes some of them and is the same for all
parties.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

KINDS = ("insert", "update", "move", "delete", "mixed")
Keys = npt.NDArray[np.int64]


class Message(NamedTuple):
    """Old keys and new ones, -1 for none, and the rows' values after the change."""

    old: Keys
    new: Keys
    values: pa.RecordBatch


def base_rows(rows: int, seed: int = 1) -> pa.Table:
    """The table's rows before the changes: a key, a tag, two numbers and a text."""
    return pa.table({"id": np.arange(rows, dtype=np.int64), **_values(rows, seed)})


def messages(kind: str, table_rows: int, count: int, rows: int) -> list[Message]:
    """``count`` messages of ``rows`` changes each; each key changes at most once."""
    random = np.random.default_rng(7)
    touched = random.permutation(table_rows)[: count * rows].astype(np.int64)
    made = []
    for number in range(count):
        fresh = table_rows + np.arange(number * rows, (number + 1) * rows, dtype=np.int64)
        old = touched[number * rows : (number + 1) * rows]
        new = fresh
        if kind == "insert":
            old = np.full(rows, -1)
        elif kind == "update":
            new = old
        elif kind == "delete":
            new = np.full(rows, -1)
        elif kind == "mixed":
            part = np.arange(rows) % 4
            old, new = (
                np.where(part == 0, -1, old),
                np.select([part == 1, part == 3], [old, np.full(rows, -1)], fresh),
            )
        values = pa.RecordBatch.from_pydict(_values(rows, number))
        made.append(Message(old, new, values))
    return made


def some_keys(table_rows: int, share: float) -> Keys:
    """Keys spread over the whole table."""
    found: Keys = np.random.default_rng(3).permutation(table_rows)[: int(table_rows * share)]
    return found.astype(np.int64)


def updates(keys: Keys) -> Message:
    """One message that updates these keys."""
    return Message(keys, keys, pa.RecordBatch.from_pydict(_values(len(keys), 5)))


def _values(rows: int, seed: int) -> dict[str, pa.Array]:
    random = np.random.default_rng(seed)
    return {
        "host": pa.array([f"host-{n}" for n in range(100)]).take(
            pa.array(random.integers(0, 100, rows))
        ),
        "v": pa.array(random.random(rows)),
        "w": pa.array(random.integers(0, 1 << 40, rows)),
    }
