"""One table of the source compared with its copy: sums by ranges, then rows where those differ.

    all rows of both ──▶ counts and sums by ranges of hashed keys ──▶ the same: equal
                              │ some differ: those ranges again, some 100,000 rows at a time
                              ▼
                         hashes of keys and rows ──▶ keys that differ ──▶ ``confirming``

Law of this file: memory is bounded, whatever the table has: two numbers for each range, the rows of
some ranges as hashes, the keys of those that differ. Never "equal" because something came to an
end: what could not be settled is told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ingester.postgres.verify.confirming import Pair, confirm, unlike
from ingester.postgres.verify.copy_position import CopyPosition
from ingester.postgres.verify.copy_rows import CopyRows
from ingester.postgres.verify.found_rows import Key, hash_block, key_texts
from ingester.postgres.verify.row_hashes import RANGES, U64, RangeSums, Texts
from ingester.postgres.verify.source_rows import SourceRows

FINE_RANGES = 1 << 20
MANY_ROWS = 2_000_000
"""From so many rows on there are more ranges: a range of a table that changes all the time would
differ nearly always."""
ROWS_AT_ONCE = 100_000
KEYS_AT_ONCE = 1_000
CATCH_UP_S = 10.0
MOST_DIFFERING = 1_000
"""The comparison of a table ends when so many rows differ for good."""


class Comparison(NamedTuple):
    """What was found in one table."""

    source_rows: int
    copy_rows: int
    differing: dict[Key, Pair]
    more: bool
    """There are more of these; they were not counted."""
    changing: int
    behind: int


class Doubtful(NamedTuple):
    """The rows of some ranges of one side, as hashes; and the texts of their keys."""

    keys: U64
    rows: U64
    texts: list[Key]


class Sides(NamedTuple):
    """The two tables, and how far the copy is."""

    source: SourceRows
    copy: CopyRows
    position: CopyPosition


def compare(
    sides: Sides, patience_s: float, told: Callable[[str, int], None] = lambda what, rows: None
) -> Comparison:
    """Compare all rows of both sides.

    Args:
        patience_s: how long a copy that is behind is waited for.
        told: called now and then with what is read, and its rows so far.

    Raises:
        SourceFailed, ClientError, SchemaChanged, NoText, psycopg2.OperationalError
    """
    fine = sides.copy.estimated_rows() >= MANY_ROWS
    sums = [RangeSums(FINE_RANGES if fine else RANGES) for _ in range(2)]
    _add_all(sides.source, sums[0], partial(told, "source"))
    _add_all(sides.copy, sums[1], partial(told, "copy"))
    ranges = sums[0].differing(sums[1])
    found = Comparison(sums[0].rows, sums[1].rows, {}, False, 0, 0)
    counts = np.maximum(sums[0].counts, sums[1].counts)[ranges]
    for some in _slices(ranges, counts):
        doubtful = _keys_that_differ(sides, sums[0], some, patience_s)
        told("rows that differ or change", len(doubtful))
        for keys in _still_unlike(sides, doubtful):
            confirmed = confirm(keys, sides.source, sides.copy, sides.position, patience_s)
            found.differing.update(confirmed.differing)
            found = found._replace(
                changing=found.changing + len(confirmed.changing),
                behind=found.behind + len(confirmed.behind),
            )
            if len(found.differing) >= MOST_DIFFERING or found.behind:
                return found._replace(more=True)
    return found


def _still_unlike(sides: Sides, keys: list[Key]) -> Iterator[list[Key]]:
    """The keys whose rows differ when they are looked at again, some at a time."""
    waiting: list[Key] = []
    for at in range(0, len(keys), KEYS_AT_ONCE):
        waiting += unlike(keys[at : at + KEYS_AT_ONCE], sides.source, sides.copy)
        if len(waiting) >= KEYS_AT_ONCE:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def _add_all(side: SourceRows | CopyRows, sums: RangeSums, told: Callable[[int], None]) -> None:
    rows = 0

    def take(columns: list[Texts]) -> None:
        nonlocal rows
        hashes = hash_block(columns, side.key_columns)
        sums.add(hashes.keys, hashes.rows)
        rows += len(hashes.rows)
        told(rows)

    side.scan(take)


def _slices(
    ranges: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
) -> Iterator[npt.NDArray[np.int64]]:
    """The ranges, as many at a time as have about ``ROWS_AT_ONCE`` rows."""
    if len(ranges):
        parts = np.cumsum(counts) // ROWS_AT_ONCE
        yield from np.split(ranges, np.flatnonzero(np.diff(parts)) + 1)


def _keys_that_differ(
    sides: Sides, sums: RangeSums, ranges: npt.NDArray[np.int64], patience_s: float
) -> list[Key]:
    """The keys in these ranges whose rows are not the same in both."""
    wanted = np.zeros(len(sums.counts), np.bool_)
    wanted[ranges] = True
    source = _doubtful(sides.source, sums, wanted)
    # What is on its way arrives meanwhile; what does not is seen to key by key.
    lsn = sides.source.standing().lsn
    sides.position.wait(lsn, min(patience_s, CATCH_UP_S), partial(time.sleep, 0.1))
    copy = _doubtful(sides.copy, sums, wanted)
    mine, theirs = (_pairs(side) for side in (source, copy))
    keys = [source.texts[at] for at in np.flatnonzero(~np.isin(mine, theirs)).tolist()]
    keys += [copy.texts[at] for at in np.flatnonzero(~np.isin(theirs, mine)).tolist()]
    return list(dict.fromkeys(keys))


def _pairs(rows: Doubtful) -> U64:
    """A hash of key and row each; a key that stands twice is told from one that does not."""
    order = np.lexsort((rows.rows, rows.keys))
    keys, hashes = rows.keys[order], rows.rows[order]
    again = np.zeros(len(keys), np.uint64)
    again[1:][(keys[1:] == keys[:-1])] = 1
    pairs = np.empty_like(keys)
    pairs[order] = keys ^ (hashes * np.uint64(3)) ^ again
    return pairs


def _doubtful(
    side: SourceRows | CopyRows, sums: RangeSums, wanted: npt.NDArray[np.bool_]
) -> Doubtful:
    keys: list[U64] = []
    rows: list[U64] = []
    texts: list[Key] = []

    def take(columns: list[Texts]) -> None:
        hashes = hash_block(columns, side.key_columns)
        places = np.flatnonzero(wanted[sums.ranges_of(hashes.keys)])
        keys.append(hashes.keys[places])
        rows.append(hashes.rows[places])
        texts.extend(key_texts(columns[: side.key_columns], places.tolist()))

    side.scan(take)
    none = np.zeros(0, np.uint64)
    return Doubtful(np.concatenate([none, *keys]), np.concatenate([none, *rows]), texts)
