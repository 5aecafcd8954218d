"""Finds the files of a keyed partition that a flush rewrites, and assigns new rows to them.

A file whose key range cannot contain a touched key is not rewritten; an unknown bound may contain
anything. After the flush each key is in the partition's files once, so a plain reader gets the last
state (tests/persist/parquet/test_key_overlap.py).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from persist.manifest import Add, ColumnStats
from persist.parquet.reading import DataFile, damage_errors, open_checked, sparse_rows
from persist.parquet.sparse_rows import SparseRows
from persist.prefetch import two_at_once
from persist.store import ObjectStore
from persist.table import DELETED, schema_with_deletes

FEW = 100_000
"""Up to this many distinct values of a key column are compared one by one, else by their bounds."""


def overlapping(files: Iterable[Add], keys: pa.Table) -> tuple[Add, ...]:
    """The files that may contain one of these keys, in their order."""
    columns = {name: _touched(keys[name]) for name in keys.column_names}
    return tuple(
        add
        for add in files
        if all(
            touched is None or _may_hold(add.stats.get(name), touched)
            for name, touched in columns.items()
        )
    )


def _touched(column: pa.ChunkedArray) -> Callable[[Any, Any], bool] | None:
    """A test whether some of the values lie within two bounds; for very many, by their own bounds.

    None if bounds have another order: decimals and bytes are recorded as text.
    """
    ordered = comparable(column)
    if ordered is None:
        return None
    values = pc.unique(ordered).drop_null()
    if len(values) > FEW:
        lowest, highest = pc.min_max(values).as_py().values()
        return lambda low, high: not (highest < low or high < lowest)
    rising = sorted(values.to_pylist())
    return lambda low, high: bisect_left(rising, low) < bisect_right(rising, high)


def comparable(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """The values in the form of a file's bounds; None if bounds have another order."""
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        return column.cast(pa.int64() if pa.types.is_timestamp(kind) else pa.int32())
    return column if pa.types.is_integer(kind) or pa.types.is_string(kind) else None


def _may_hold(bounds: ColumnStats | None, touched: Callable[[Any, Any], bool]) -> bool:
    if bounds is None or bounds.min is None or bounds.max is None:
        return True
    return touched(bounds.min, bounds.max)


def neighbour(
    files: Iterable[Add], taken: Sequence[Add], touched: Mapping[str, ColumnStats], key: str
) -> Add | None:
    """A file to rewrite with the chosen ones, so that the result is not too small.

    It is adjacent to them and to the touched keys by a key column; of several the smallest.
    """
    others = [add for add in files if add not in taken]
    here = [touched.get(key), *(add.stats.get(key) for add in taken)]
    below = [add for add in others if all(_apart(add.stats.get(key), one) for one in here)]
    above = [add for add in others if all(_apart(one, add.stats.get(key)) for one in here)]
    beside = [add for add in others if add not in below and add not in above]
    nearest = [
        *beside,
        *sorted(below, key=lambda add: _bound(add.stats[key].max))[-1:],
        *sorted(above, key=lambda add: _bound(add.stats[key].min))[:1],
    ]
    return min(nearest, key=lambda add: add.bytes, default=None)


def rising(files: Iterable[Add], key: str) -> list[Add]:
    """The files by their lower bound of a column; those without one first."""

    def low(add: Add) -> tuple[bool, Any]:
        bound = _low(add, key)
        return bound is not None, bound

    return sorted(files, key=low)


def _low(add: Add, key: str) -> Any:
    bounds = add.stats.get(key)
    return None if bounds is None or bounds.max is None else bounds.min


class NewRows:
    """New rows, assigned to files that are rewritten group by group.

    Each row goes with one group, and is a delete in every other group that may have its key.
    """

    def __init__(self, rows: SparseRows, key: str) -> None:
        """Take ``key``, the first column of the table's key, by which groups are roughly
        disjoint.
        """
        self._rows = rows
        self._key = key
        self._values = comparable(rows.column(key))
        self._gone = np.zeros(rows.num_rows, np.bool_)

    def share(self, group: Sequence[Add], next_: Add | None) -> SparseRows:
        """The rows of a group: those below the next group that were not given out yet.

        Args:
            next_: the first file of the next group, or None.
        """
        below = ~self._gone if next_ is None else ~self._gone & self._below(_low(next_, self._key))
        if below.all():
            self._gone |= below
            return self._rows
        self._gone |= below
        chosen = below | self._may_be_in(group)
        return marked(self._rows, ~below).filter(chosen)

    def _below(self, bound: Any) -> npt.NDArray[np.bool_]:
        if self._values is None or bound is None:
            return np.zeros(len(self._gone), np.bool_)
        return _true(pc.less(self._values, pa.scalar(bound, self._values.type)))

    def _may_be_in(self, group: Sequence[Add]) -> npt.NDArray[np.bool_]:
        bounds = [add.stats.get(self._key) for add in group]
        lows = [one.min for one in bounds if one is not None and one.min is not None]
        highs = [one.max for one in bounds if one is not None and one.max is not None]
        if self._values is None or len(lows) < len(group) or len(highs) < len(group):
            return np.ones(len(self._gone), np.bool_)
        kind = self._values.type
        low, high = pa.scalar(min(lows), kind), pa.scalar(max(highs), kind)
        out: npt.NDArray[np.bool_] = _true(
            pc.or_(pc.less(self._values, low), pc.greater(self._values, high))
        )
        return ~out


def marked(rows: SparseRows, deletes: npt.NDArray[np.bool_]) -> SparseRows:
    """The rows with these marked as deletes, beside those marked already."""
    has_marks = DELETED in rows.schema.names
    if has_marks:
        deletes = deletes | pc.fill_null(rows.column(DELETED), False).to_numpy()
    schema = rows.schema if has_marks else schema_with_deletes(rows.schema)
    batches, start = [], 0
    for batch in rows.batches:
        marks = pa.array(deletes[start : start + batch.num_rows])
        start += batch.num_rows
        own = [n for n in batch.schema.names if n != DELETED]
        columns = [*(batch.column(name) for name in own), marks]
        batches.append(pa.RecordBatch.from_arrays(columns, names=[*own, DELETED]))
    return SparseRows.of(batches, schema)


def _true(values: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = pc.fill_null(values, False).to_numpy()
    return found


def read_rows(store: ObjectStore, folder: str, files: Iterable[Add]) -> list[SparseRows]:
    """The rows of these files, one item per file; ``folder`` is the table version's.

    Raises:
        FileDamaged: a file is damaged.
    """
    return list(two_at_once(partial(_rows, store, DataFile.of(add, folder)) for add in files))


def _rows(store: ObjectStore, file: DataFile) -> SparseRows:
    with (
        store.open(file.path) as source,
        damage_errors(file.path),
        open_checked(source, file) as parquet,
    ):
        return sparse_rows(parquet)


def _apart(lower: ColumnStats | None, upper: ColumnStats | None) -> bool:
    """Whether all values of one column are certainly below those of the other."""
    return lower is not None and upper is not None and _below(lower.max, upper.min)


def _bound(value: object) -> tuple[float, str]:
    """A sort key of a bound, text or number; no column has both."""
    return (0.0, value) if isinstance(value, str) else (float(cast(float, value)), "")


def _below(high: object, low: object) -> bool:
    """Whether a known upper bound is certainly below a known lower one."""
    if isinstance(high, str) and isinstance(low, str):
        return high < low
    if isinstance(high, int | float) and isinstance(low, int | float):
        return high < low
    return False
