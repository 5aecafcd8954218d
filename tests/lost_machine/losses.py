"""Which machine is lost next, how, and what takes its place: drawn from the seed.

    killed    kill -9, and the data directory is deleted
    paused    SIGSTOP; another process takes its place, and it is woken while that starts, while
              that serves, or much later
    crashed   kill -9, and the next process has the same data directory (no loss; extra)

    restart   a process with the same id and an empty data directory
    adopt     another process commits the log first; then the same restart

A successor may be lost as well before it serves, with its data directory, several times in a row.

Pure functions. The same seed gives the same plan; the exact point of a loss depends on the machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from random import Random

HOMES = 3
"""The number of daemons."""
WAKES = ("starting", "serving", "later")
BASE: dict[str, object] = {
    "wal__segment_bytes": "128KiB",
    "wal__segment_age": "1s",
    "manifest__refresh": "100ms",
}
FLUSHES: tuple[dict[str, object], ...] = (
    {"persist__max_age": "1h"},
    {"persist__max_age": "1s"},
    {"persist__max_age": "3s", "wal__segment_bytes": "16KiB"},
    {"persist__max_age": "8s", "persist__max_partition_bytes": "64KiB"},
)
SHIPPING: tuple[dict[str, object], ...] = (
    {},
    {"wal__store__interval": "10ms"},
    {"wal__store__interval": "300ms", "wal__store__max_bytes": "64KiB"},
    {"wal__disk": "off"},
    {"wal__disk": "off", "wal__store__interval": "20ms"},
)


@dataclass(frozen=True, slots=True)
class Loss:
    """One loss, and the settings of the process that takes the place of the lost one."""

    home: int
    after_s: float
    paused: bool
    adopted: bool
    wakes: str
    """When a paused process is woken."""
    again_s: tuple[float, ...]
    """Successors that are lost too: the time of each since its start."""
    settings: Mapping[str, object]
    crashed: bool = False

    @property
    def kind(self) -> str:
        """For the report."""
        if self.crashed:
            return "crashed"
        return (
            f"{'paused' if self.paused else 'killed'}, {'adopted' if self.adopted else 'restarted'}"
        )


def settings_of(random: Random, *, ships: bool) -> dict[str, object]:
    """The settings of one process; those of log shipping only if it ``ships``."""
    return BASE | random.choice(FLUSHES) | (random.choice(SHIPPING) if ships else {})


def plan(seed: int, longest_s: float, *, ships: bool) -> Iterator[Loss]:
    """Yield losses without end; every second one is a pause. Without shipping, only crashes."""
    random = Random(seed)
    for index in count():
        yield Loss(
            home=random.randrange(HOMES),
            after_s=random.uniform(0.1, longest_s),
            paused=index % 2 == 1,
            adopted=random.random() < 0.35,
            wakes=random.choice(WAKES),
            again_s=tuple(random.uniform(0.05, 1.0) for _ in range(random.choice((0, 0, 0, 1, 2)))),
            settings=settings_of(random, ships=ships),
            crashed=not ships or random.random() < 0.12,
        )
