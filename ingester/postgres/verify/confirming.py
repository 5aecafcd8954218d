"""Whether rows that differ do so for good, or because a change was on its way.

    source read ─▶ its log's end, L ─▶ the copy has passed L ─▶ copy read ─▶ source read again

Law of this file: the end of the log is asked for *after* the source was read. What a snapshot sees
was in the log before, so a copy that has passed L has all of it, and maybe more; asked for before,
a commit between the two would be seen and not be waited for. A copy's row is right if it is one of
those that the source had from the first of these reads on. It is wrong if it is not, and all these
reads of the source have found the same row, of the same ``xmin``: then no other was there to be
copied. Anything else says nothing, and is tried again.

No row with an ``xmin`` is there to be compared where the source has none. Such a row of the copy is
wrong when that was found several times in a row; one that comes and goes would be seen to.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from functools import partial
from typing import NamedTuple, Protocol

from ingester.postgres.verify.copy_position import CopyPosition
from ingester.postgres.verify.found_rows import FoundRow, FoundRows, Key
from ingester.postgres.verify.source_rows import Standing

TRIES = 40
FOUND_TWICE, FOUND_OFTEN = 2, 5
"""So many times in a row a wrong row has to be found; more often where the source has none."""
FEW_KEYS = 100
"""The source is read again and again for so many: of a row that never rests, each state counts."""
PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0


class Source(Protocol):
    """The source's table."""

    def find(self, keys: Collection[Key]) -> FoundRows: ...

    def standing(self) -> Standing: ...


class Copy(Protocol):
    """The copy's table."""

    def find(self, keys: Collection[Key]) -> FoundRows: ...


class Pair(NamedTuple):
    """The two rows of a key; one of them may be missing."""

    source: FoundRow | None
    copy: FoundRow | None


class Confirmed(NamedTuple):
    """What became of keys that were in doubt; the others are equal."""

    differing: dict[Key, Pair]
    changing: set[Key]
    """They were never still."""
    behind: set[Key]
    """The copy did not come to where the source was read."""


class _Seen:
    """The rows that the source had since a moment, by key."""

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


def unlike(keys: Collection[Key], source: Source, copy: Copy) -> list[Key]:
    """The keys whose rows differ just now: a change that has arrived meanwhile needs no waiting.

    Raises:
        SourceFailed, ClientError, SchemaChanged, NoText, psycopg2.OperationalError
    """
    wanted = set(keys)
    seen = _Seen(wanted)
    seen.add(source.find(wanted))
    found = copy.find(wanted)
    seen.add(source.find(wanted))
    return [key for key in keys if not seen.has(key, found.get(key))]


def confirm(
    keys: Collection[Key], source: Source, copy: Copy, position: CopyPosition, patience_s: float
) -> Confirmed:
    """Look at rows that differ until they are equal, or differ for good.

    Args:
        keys: some hundreds at most.
        patience_s: how long a copy that is behind is waited for, all in all.

    Raises:
        SourceFailed, ClientError, SchemaChanged, NoText, psycopg2.OperationalError
    """
    waiting = set(keys)
    times: dict[Key, int] = {}
    differing: dict[Key, Pair] = {}
    pause_s = PAUSE_S
    ends_at = time.monotonic() + patience_s
    for _ in range(TRIES):
        seen = _Seen(waiting)
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


def _watch(source: Source, keys: set[Key], seen: _Seen) -> None:
    if len(keys) > FEW_KEYS:
        time.sleep(0.1)
        return
    seen.add(source.find(keys))
    time.sleep(0.002)


def _facts(row: FoundRow | None) -> tuple[str, tuple[int, ...]] | None:
    return None if row is None else (row.version, row.hashes)
