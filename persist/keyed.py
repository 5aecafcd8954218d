"""Which files of a keyed partition a flush has to rewrite, and their rows.

Law of this file: a file whose key range cannot hold a touched key stays as it is; an unknown bound
can hold anything. After the flush each key stands once in the partition's files, so whoever reads
them plainly reads the last state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

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


def _below(high: object, low: object) -> bool:
    """Whether a known upper bound is certainly below a known lower one."""
    if isinstance(high, str) and isinstance(low, str):
        return high < low
    if isinstance(high, int | float) and isinstance(low, int | float):
        return high < low
    return False
