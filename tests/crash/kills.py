"""When and how the next kill comes: drawn from the seed, every kind in turn.

    writing   a while after the writers went on
    persist   shortly after everything was asked to be persisted
    started   just after it was ready again, before anybody wrote
    replay    after a kill while writing: again, within 300 ms after the new process claimed its
              epoch, which is when it begins to replay
    twice     the same, two or three times in a row, and once at any moment from the start on

Law of this file: pure. The same seed gives the same plan; where exactly a kill hits still depends
on the machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random

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


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill while the daemon serves, and those that follow before it serves again."""

    kind: str
    after_s: float
    """From when the writers went on."""
    persist_before_s: float | None = None
    """Everything is asked to be persisted so long before the kill."""
    again_after_claim_s: tuple[float, ...] = ()
    """Kills of the next processes, each so long after it claimed its epoch."""
    again_after_start_s: tuple[float, ...] = ()
    """Then kills of the next processes, each so long after its start."""
    settings: dict[str, object] = field(default_factory=dict)
    """Of the process that serves afterwards, and of those that are killed before it does."""

    @property
    def kills(self) -> int:
        """How many processes it costs."""
        return 1 + len(self.again_after_claim_s) + len(self.again_after_start_s)


def plan(seed: int, longest_s: float) -> Iterator[Kill]:
    """Kills without end, each at most ``longest_s`` after the writers went on."""
    random = Random(seed)
    for index in count():
        kind = KINDS[index % len(KINDS)]
        settings = {**BASE_SETTINGS, **random.choice(SETTINGS)}
        after_s = random.uniform(0.2, longest_s)
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
        yield Kill(kind, after_s, before_s, claims, starts, settings)
