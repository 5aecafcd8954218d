"""Whether a key stands twice in files of one partition that were written side by side.

Law of this file: files whose keys are apart by their bounds are not read, and of the others the key
alone. The rows of one file stand in it once each: whoever makes it sees to that. Blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from persist.manifest import Add
from persist.parquet.key_overlap import comparable
from persist.parquet.key_spans import KeySpans, Span, TooMuch
from persist.parquet.sort_keys import argsort, key_of
from persist.parquet.sparse_rows import SparseRows
from persist.store import ObjectStore
from persist.table import TableDefinition

KEY_BYTES = 64 << 20
"""The bytes of keys, about, that are held at once."""


def repeated_key(
    store: ObjectStore,
    folder: str,
    files: Sequence[Add],
    definition: TableDefinition,
    room: int = KEY_BYTES,
) -> dict[str, Any] | None:
    """A key that two rows of these files have; None where each has one of its own.

    Args:
        folder: Of the table version that the files are in.
        files: Of one partition.

    Raises:
        StoreError, FileDamaged: As files are read.
    """
    spans = KeySpans(store, folder, definition, definition.primary_key)
    first = definition.schema.field(definition.primary_key[0])
    for together in _overlapping(files, first):
        for span in spans.of(together, room):
            if (found := _repeated_in(spans, together, span, room)) is not None:
                return found
    return None


def first_repeated(rows: SparseRows, names: Sequence[str]) -> dict[str, Any] | None:
    """A key that two of these rows have; None where each has one of its own."""
    if rows.num_rows < 2:
        return None
    keys = [key_of(name, rows.column(name))[1] for name in names]
    codes = [key.codes for key in keys]
    order = argsort(keys)
    equal = np.ones(len(order) - 1, np.bool_)
    for one in codes:
        equal &= one[order[1:]] == one[order[:-1]]
    if not equal.any():
        return None
    row = int(order[int(np.flatnonzero(equal)[0])])
    return {name: rows.column(name)[row].as_py() for name in names}


def _repeated_in(
    spans: KeySpans, files: Sequence[Add], span: Span, room: int
) -> dict[str, Any] | None:
    try:
        keys = spans.rows(files, span, room)
    except TooMuch:
        found = (_repeated_in(spans, files, half, room) for half in span.halves())
        return next((each for each in found if each is not None), None)
    return first_repeated(keys, spans.names)


def _overlapping(files: Sequence[Add], first: pa.Field) -> Iterator[list[Add]]:
    """The files in groups whose keys are apart; none of a file that is apart from all others."""
    bounds = [add.stats.get(first.name) for add in files]
    unknown = any(one is None or one.min is None or one.max is None for one in bounds)
    if unknown or comparable(pa.chunked_array([], first.type)) is None:
        if len(files) > 1:
            yield list(files)
        return
    group: list[Add] = []
    highest: Any = None
    for add in sorted(files, key=lambda add: _low(add, first.name)):
        if group and _low(add, first.name) > highest:
            if len(group) > 1:
                yield group
            group, highest = [], None
        group.append(add)
        high: Any = add.stats[first.name].max
        highest = high if highest is None else max(highest, high)
    if len(group) > 1:
        yield group


def _low(add: Add, name: str) -> Any:
    return add.stats[name].min
