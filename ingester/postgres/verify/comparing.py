"""Compares one table with its copy: sums by ranges of keys, then the rows of ranges that differ.

    all rows of both ──▶ counts and sums by ranges of hashed keys ──▶ the same: equal
                              │ those that differ, about 100,000 rows at a time
                              ▼
                         hashes of keys and rows ──▶ keys that differ ──▶ confirm

    confirm: source read ─▶ end of its log, L ─▶ the copy passes L ─▶ copy read ─▶ source read again

The end of the log is read *after* the source. A snapshot sees only what was in the log before, so
a copy that has passed L contains all of it; if L were read first, a commit in between would be seen
and not waited for. A row of the copy is right if the source had it in one of these reads. It is
wrong if it is not, and all reads of the source returned the same row with the same ``xmin``: no
other version existed. Otherwise the key is read again. A row that only the copy has shows no
``xmin``; it is wrong when found several times in a row.

Memory is bounded: two numbers per range, hashes of some ranges' rows, and the keys that differ. A
row that could not be settled is reported and never called equal
(``tests/postgres/test_verifying.py``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ingester.postgres.verify.copy_rows import ComparedCopy, CopyPosition
from ingester.postgres.verify.differences import FoundRow, FoundRows, Key, hash_block, key_texts
from ingester.postgres.verify.row_hashes import RANGES, U64, RangeSums, Texts
from ingester.postgres.verify.source_rows import ComparedSource

TRIES = 40
FOUND_TWICE, FOUND_OFTEN = 2, 5
"""How many times in a row a row must be wrong; more often if the source does not have it."""
FEW_KEYS = 100
"""Up to this number of keys the source is polled, to see each version of a busy row."""
PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0
FINE_RANGES = 1 << 20
MANY_ROWS = 2_000_000
"""The number of rows from which there are more ranges: in a busy table, large ranges would
nearly always differ."""
ROWS_AT_ONCE = 100_000
KEYS_AT_ONCE = 1_000
CATCH_UP_S = 10.0
MOST_DIFFERING = 1_000
"""The comparison of a table ends with this number of differing rows."""


class Pair(NamedTuple):
    """The two rows of a key, at most one missing."""

    source: FoundRow | None
    copy: FoundRow | None


class Confirmed(NamedTuple):
    """The outcome for doubtful keys; all others are equal."""

    differing: dict[Key, Pair]
    changing: set[Key]
    """Changed too often."""
    behind: set[Key]
    """The copy did not reach the source's position."""


class _SeenRows:
    """The versions of rows that the source had since a moment, by key."""

    def __init__(self, keys: Collection[Key]) -> None:
        self._rows: dict[Key, list[FoundRow | None]] = {key: [] for key in keys}

    def add(self, found: FoundRows) -> None:
        for key, rows in self._rows.items():
            row = found.get(key)
            if not rows or _facts(rows[-1]) != _facts(row):
                rows.append(row)

    def has(self, key: Key, row: FoundRow | None) -> bool:
        mine = None if row is None else row.hashes
        return any(mine == (None if each is None else each.hashes) for each in self._rows[key])

    def only(self, key: Key) -> bool:
        return len(self._rows[key]) == 1

    def last(self, key: Key) -> FoundRow | None:
        return self._rows[key][-1]


def unlike(keys: Collection[Key], source: ComparedSource, copy: ComparedCopy) -> list[Key]:
    """The keys whose rows differ at present, without waiting."""
    wanted = set(keys)
    seen = _SeenRows(wanted)
    seen.add(source.find(wanted))
    found = copy.find(wanted)
    seen.add(source.find(wanted))
    return [key for key in keys if not seen.has(key, found.get(key))]


def confirm(
    keys: Collection[Key],
    source: ComparedSource,
    copy: ComparedCopy,
    position: CopyPosition,
    patience_s: float,
) -> Confirmed:
    """Read differing rows again until they are equal or known to differ.

    Args:
        keys: some hundreds at most.
        patience_s: the longest wait for a copy that is behind, in total.
    """
    waiting = set(keys)
    times: dict[Key, int] = {}
    differing: dict[Key, Pair] = {}
    pause_s = PAUSE_S
    ends_at = time.monotonic() + patience_s
    for _ in range(TRIES):
        seen = _SeenRows(waiting)
        seen.add(source.find(waiting))
        standing = source.standing()
        passed = position.wait(
            standing.lsn, ends_at - time.monotonic(), partial(_watch, source, waiting, seen)
        )
        found = copy.find(waiting)
        seen.add(source.find(waiting))
        still = passed and not standing.held_back
        for key in list(waiting):
            row = found.get(key)
            if seen.has(key, row):
                waiting.discard(key)
                continue
            times[key] = times.get(key, 0) + 1 if still and seen.only(key) else 0
            last = seen.last(key)
            if times[key] >= (FOUND_OFTEN if last is None else FOUND_TWICE):
                differing[key] = Pair(last, row)
                waiting.discard(key)
        if not waiting:
            break
        if not passed:
            return Confirmed(differing, set(), waiting)
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
    return Confirmed(differing, waiting, set())


def _watch(source: ComparedSource, keys: set[Key], seen: _SeenRows) -> None:
    if len(keys) > FEW_KEYS:
        time.sleep(0.1)
        return
    seen.add(source.find(keys))
    time.sleep(0.002)


def _facts(row: FoundRow | None) -> tuple[str, tuple[int, ...]] | None:
    return None if row is None else (row.version, row.hashes)


class TableComparison(NamedTuple):
    """The findings in one table."""

    source_rows: int
    copy_rows: int
    differing: dict[Key, Pair]
    more: bool
    """There are more, uncounted."""
    changing: int
    behind: int


class Doubtful(NamedTuple):
    """Hashes of the rows of some ranges of one side, and their keys."""

    keys: U64
    rows: U64
    texts: list[Key]


class Sides(NamedTuple):
    """Both tables, and the copy's position."""

    source: ComparedSource
    copy: ComparedCopy
    position: CopyPosition


def compare(
    sides: Sides, patience_s: float, progress: Callable[[str, int], None] = lambda what, rows: None
) -> TableComparison:
    """Compare all rows of both sides.

    Args:
        patience_s: the longest wait for a copy that is behind.
        progress: called with the current step and its rows so far.

    Raises:
        SchemaChanged, NoText: the tables changed.
    """
    fine = sides.copy.estimated_rows() >= MANY_ROWS
    sums = [RangeSums(FINE_RANGES if fine else RANGES) for _ in range(2)]
    _add_all(sides.source, sums[0], partial(progress, "source"))
    _add_all(sides.copy, sums[1], partial(progress, "copy"))
    ranges = sums[0].differing(sums[1])
    found = TableComparison(sums[0].rows, sums[1].rows, {}, False, 0, 0)
    counts = np.maximum(sums[0].counts, sums[1].counts)[ranges]
    for some in _slices(ranges, counts):
        doubtful = _keys_that_differ(sides, sums[0], some, patience_s)
        progress("rows that differ or change", len(doubtful))
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
    """Keys whose rows still differ in a second read, in slices."""
    waiting: list[Key] = []
    for at in range(0, len(keys), KEYS_AT_ONCE):
        waiting += unlike(keys[at : at + KEYS_AT_ONCE], sides.source, sides.copy)
        if len(waiting) >= KEYS_AT_ONCE:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def _add_all(
    side: ComparedSource | ComparedCopy, sums: RangeSums, progress: Callable[[int], None]
) -> None:
    rows = 0

    def take(columns: list[Texts]) -> None:
        nonlocal rows
        hashes = hash_block(columns, side.key_columns)
        sums.add(hashes.keys, hashes.rows)
        rows += len(hashes.rows)
        progress(rows)

    side.scan(take)


def _slices(
    ranges: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
) -> Iterator[npt.NDArray[np.int64]]:
    """Slices of ranges with about ``ROWS_AT_ONCE`` rows each."""
    if len(ranges):
        parts = np.cumsum(counts) // ROWS_AT_ONCE
        yield from np.split(ranges, np.flatnonzero(np.diff(parts)) + 1)


def _keys_that_differ(
    sides: Sides, sums: RangeSums, ranges: npt.NDArray[np.int64], patience_s: float
) -> list[Key]:
    """Keys in these ranges whose rows differ."""
    wanted = np.zeros(len(sums.counts), np.bool_)
    wanted[ranges] = True
    source = _doubtful(sides.source, sums, wanted)
    # Changes in transit arrive meanwhile; others are examined key by key.
    lsn = sides.source.standing().lsn
    sides.position.wait(lsn, min(patience_s, CATCH_UP_S), partial(time.sleep, 0.1))
    copy = _doubtful(sides.copy, sums, wanted)
    mine, theirs = (_pairs(side) for side in (source, copy))
    keys = [source.texts[at] for at in np.flatnonzero(~np.isin(mine, theirs)).tolist()]
    keys += [copy.texts[at] for at in np.flatnonzero(~np.isin(theirs, mine)).tolist()]
    return list(dict.fromkeys(keys))


def _pairs(rows: Doubtful) -> U64:
    """A hash of each key and row, which distinguishes a repeated key."""
    order = np.lexsort((rows.rows, rows.keys))
    keys, hashes = rows.keys[order], rows.rows[order]
    again = np.zeros(len(keys), np.uint64)
    again[1:][(keys[1:] == keys[:-1])] = 1
    pairs = np.empty_like(keys)
    pairs[order] = keys ^ (hashes * np.uint64(3)) ^ again
    return pairs


def _doubtful(
    side: ComparedSource | ComparedCopy, sums: RangeSums, wanted: npt.NDArray[np.bool_]
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
