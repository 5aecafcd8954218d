"""The extent of a campaign, and its results."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.checking import Findings


@dataclass(frozen=True, slots=True)
class Extent:
    """The extent of a campaign."""

    seed: int
    losses: int
    spark: bool = True
    """Whether Spark writes, and reads at the end; otherwise one more plain writer does."""
    patient: bool = True
    """Whether some losses wait for the other daemons, which adopt a log after `ADOPT_AFTER_S`."""
    longest_s: float = 1.5
    """The longest time between two losses."""
    rows_per_s: float = 200.0
    """Of each writer."""


@dataclass(slots=True)
class Report:
    """The results of campaigns."""

    findings: Findings = field(default_factory=Findings)
    losses: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    restarts_s: list[float] = field(default_factory=list)
    adoptions_s: list[float] = field(default_factory=list)
    """Of ``ingester wal adopt``."""
    waits_s: list[float] = field(default_factory=list)
    """From a loss until daemons had adopted the log."""
    reads_again: Counter[str] = field(default_factory=Counter)
    """Reads that were refused and tried again, by the error."""
    acknowledged_rows: int = 0
    read_at_end: Counter[str] = field(default_factory=Counter)
    histories: list[Path] = field(default_factory=list)
    verdicts: list[str] = field(default_factory=list)
    """Of the offline checker on the histories."""

    @property
    def lost(self) -> int:
        """The number of lost machines; crashes that kept the disk are not losses."""
        return sum(number for kind, number in self.losses.items() if kind != "crashed")
