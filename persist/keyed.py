"""Which files of a keyed partition a flush has to rewrite, and their rows.

Law of this file: a file whose key range cannot hold a touched key stays as it is; an unknown bound
can hold anything. After the flush each key stands once in the partition's files, so whoever reads
them plainly reads the last state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import pyarrow as pa

from persist.footers import DataFile, open_checked, told
from persist.manifest import Add, ColumnStats
from persist.store import ObjectStore


def overlapping(
    files: Iterable[Add], touched: Mapping[str, ColumnStats], primary_key: Sequence[str]
) -> tuple[Add, ...]:
    """The files that may have a key within the bounds of the touched ones, in their order."""
    return tuple(
        add
        for add in files
        if all(_meet(add.stats.get(name), touched.get(name)) for name in primary_key)
    )


def neighbour(
    files: Iterable[Add], taken: Sequence[Add], touched: Mapping[str, ColumnStats], key: str
) -> Add | None:
    """A file to rewrite with those that are taken, so that what comes of them is not too small.

    Next to them and the touched keys, in the order of a column of the key; the smaller one of two.
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


def read_rows(store: ObjectStore, folder: str, files: Iterable[Add]) -> list[pa.Table]:
    """All rows of these files, a table each; ``folder`` is the table version's.

    Raises:
        FileDamaged: one is not what was written.
    """
    return [_rows(store, DataFile.of(add, folder)) for add in files]


def _rows(store: ObjectStore, file: DataFile) -> pa.Table:
    with store.open(file.path) as source, told(file.path), open_checked(source, file) as parquet:
        return parquet.read(use_threads=False)


def _meet(one: ColumnStats | None, other: ColumnStats | None) -> bool:
    if one is None or other is None:
        return True
    return not (_below(one.max, other.min) or _below(other.max, one.min))


def _apart(lower: ColumnStats | None, upper: ColumnStats | None) -> bool:
    """Whether all of one column's values are certainly below the other's."""
    return lower is not None and upper is not None and _below(lower.max, upper.min)


def _bound(value: object) -> tuple[float, str]:
    """Texts and numbers in their order; no column has both."""
    return (0.0, value) if isinstance(value, str) else (float(cast(float, value)), "")


def _below(high: object, low: object) -> bool:
    """Whether a known upper bound is certainly below a known lower one."""
    if isinstance(high, str) and isinstance(low, str):
        return high < low
    if isinstance(high, int | float) and isinstance(low, int | float):
        return high < low
    return False
