"""Which machine is lost next, how, and what takes its place: drawn from the seed.

    killed    kill -9, and the data directory is gone
    paused    SIGSTOP; another process takes its place, and it is woken while that starts, while
              that serves, or much later
    crashed   kill -9, and the next process has the same data directory (no loss; extra)

    restarted            a process with the same id and an empty data directory
    adopted              ``ingester wal adopt --from-store`` first; then the same restart
    adopted by daemons   the other daemons adopt the log (``recovery.adopt``); then the same restart

A successor may be lost as well before it serves, with its data directory, several times in a row.
The data directory of a killed or woken process may be found again, and is then adopted, too.

Pure functions. The same seed gives the same plan; the exact point of a loss depends on the machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Literal

Successor = Literal["restarted", "adopted", "adopted by daemons"]

HOMES = 3
"""The number of daemons."""
WAKES = ("starting", "serving", "later")
SUCCESSORS: tuple[Successor, ...] = (
    *("restarted",) * 11,
    *("adopted",) * 7,
    *("adopted by daemons",) * 2,
)
ADOPT_AFTER_S = 12.0
"""More than two heartbeats, so that no live daemon is adopted."""
BASE: dict[str, object] = {
    "wal__segment_bytes": "128KiB",
    "wal__segment_age": "1s",
    "recovery__adopt_after": ADOPT_AFTER_S,
}
NEAR: tuple[dict[str, object], ...] = (
    {"persist__max_age": "1h"},
    {"persist__max_age": "1s"},
    {"persist__max_age": "3s", "wal__segment_bytes": "16KiB"},
    {"persist__max_age": "8s", "persist__max_partition_bytes": "64KiB"},
)
FAR: tuple[dict[str, object], ...] = (
    {"persist__max_age": "1h"},
    {"persist__max_age": "15s", "wal__segment_bytes": "16KiB"},
    {"persist__max_age": "40s", "persist__max_partition_bytes": "256KiB"},
)
"""A read asks a store at a distance for one file after another, so there are fewer files."""
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
    successor: Successor
    wakes: str
    """When a paused process is woken."""
    again_s: tuple[float, ...]
    """Successors that are lost too: the time of each since its start."""
    found: bool
    """Whether its data directory is found again."""
    settings: Mapping[str, object]
    crashed: bool = False

    @property
    def kind(self) -> str:
        """For the report."""
        if self.crashed:
            return "crashed"
        return f"{'paused' if self.paused else 'killed'}, {self.successor}"


def settings_of(random: Random, *, far: bool) -> dict[str, object]:
    """The settings of one process, at a store that may be ``far``."""
    refresh = {"manifest__refresh": "500ms" if far else "100ms"}
    return BASE | refresh | random.choice(FAR if far else NEAR) | random.choice(SHIPPING)


def plan(seed: int, longest_s: float, *, far: bool) -> Iterator[Loss]:
    """Yield losses without end; every second one is a pause."""
    random = Random(seed)
    for index in count():
        yield Loss(
            home=random.randrange(HOMES),
            after_s=random.uniform(0.1, longest_s),
            paused=index % 2 == 1,
            successor=random.choice(SUCCESSORS),
            wakes=random.choice(WAKES),
            again_s=tuple(random.uniform(0.05, 1.0) for _ in range(random.choice((0, 0, 0, 1, 2)))),
            found=random.random() < 0.4,
            settings=settings_of(random, far=far),
            crashed=random.random() < 0.1,
        )
