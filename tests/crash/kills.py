"""When and how the next kill happens: drawn from the seed, every kind in turn.

    writing   a while after the writers resumed
    persist   shortly after a flush of everything was requested
    started   just after the daemon was ready again, before any client wrote
    replay    after a kill during writes: again, within 300 ms after the new process claimed its
              epoch, which is when it begins to replay
    twice     the same, two or three times in a row, and once at any moment after the start

A trouble may occur while the daemon serves. The daemon is paused (SIGSTOP), for shorter or
longer than its clients wait, or the world has a trouble (:mod:`tests.crash.worlds`), which ends
before the kill or lasts until the next process serves.

Pure functions. The same seed gives the same plan; the exact point of a kill still depends on the
machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random

from tests.crash.session import CLIENT_TIMEOUT_S

KINDS = ("writing", "replay", "persist", "writing", "twice", "writing", "persist", "started")

SETTINGS: tuple[dict[str, object], ...] = (
    {"wal__segment_bytes": "64KiB", "persist__max_age": "500ms"},
    {"wal__segment_bytes": "256KiB", "persist__max_age": "2s"},
    {"wal__segment_bytes": "16KiB", "persist__max_age": "5s", "persist__workers": 4},
    {"wal__segment_bytes": "1MiB", "persist__max_partition_bytes": "16KiB"},
    {"wal__segment_age": "200ms", "persist__max_age": "1s", "memory__limit": "4MiB"},
)
BASE_SETTINGS: dict[str, object] = {
    "wal__segment_bytes": "128KiB",
    "wal__segment_age": "1s",
    "persist__max_age": "2s",
    "persist__max_partition_bytes": "128KiB",
    "manifest__refresh": "100ms",
}


SHORT_PAUSE, LONG_PAUSE = "pause", "long pause"
TROUBLED = 0.6
"""The share of lives with a trouble."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A trouble while the daemon serves."""

    kind: str
    at_s: float
    """From the time the writers resumed."""
    for_s: float
    outlasts: bool
    """Whether it lasts over the kill and the start of the next process."""


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill while the daemon serves, and the kills before it serves again."""

    kind: str
    after_s: float
    """From the time the writers resumed."""
    persist_before_s: float | None = None
    """The time from the request to flush everything to the kill."""
    again_after_claim_s: tuple[float, ...] = ()
    """Kills of the next processes, each this long after it claimed its epoch."""
    again_after_start_s: tuple[float, ...] = ()
    """Further kills of the next processes, each this long after its start."""
    settings: dict[str, object] = field(default_factory=dict)
    """Settings of the process that serves afterwards, and of those killed before it."""
    trouble: Trouble | None = None

    @property
    def kills(self) -> int:
        """The number of killed processes."""
        return 1 + len(self.again_after_claim_s) + len(self.again_after_start_s)


def plan(seed: int, longest_s: float, troubles: tuple[str, ...] = ()) -> Iterator[Kill]:
    """Yield kills endlessly, each at most ``longest_s`` (plus a pause) after a resume."""
    random = Random(seed)
    for index in count():
        kind = KINDS[index % len(KINDS)]
        settings = {**BASE_SETTINGS, **random.choice(SETTINGS)}
        trouble = None
        if troubles and kind != "started" and random.random() < TROUBLED:
            trouble = _trouble(random, longest_s, troubles)
        earliest_s = trouble.at_s + trouble.for_s if trouble is not None else 0.1
        after_s = random.uniform(earliest_s, max(longest_s, earliest_s + 0.1))
        claims: tuple[float, ...] = ()
        starts: tuple[float, ...] = ()
        before_s = None
        if kind == "persist":
            before_s = random.uniform(0.0, 0.25)
        elif kind == "started":
            after_s = 0.0
        elif kind == "replay":
            claims = (random.uniform(0.0, 0.3),)
        elif kind == "twice":
            claims = tuple(random.uniform(0.0, 0.3) for _ in range(random.randint(2, 3)))
            starts = (random.uniform(0.0, 1.5),)
        yield Kill(kind, after_s, before_s, claims, starts, settings, trouble)


def _trouble(random: Random, longest_s: float, troubles: tuple[str, ...]) -> Trouble:
    # Each pause is as frequent as each other kind of trouble: stores have many kinds.
    kinds = (SHORT_PAUSE, LONG_PAUSE, *troubles)
    kind = random.choice(kinds)
    for_s = random.uniform(0.3, 1.0)
    if kind == LONG_PAUSE:
        for_s = CLIENT_TIMEOUT_S + random.uniform(0.2, 0.8)
    outlasts = kind not in (SHORT_PAUSE, LONG_PAUSE) and random.random() < 0.5
    return Trouble(kind, random.uniform(0.0, longest_s / 3), for_s, outlasts)
