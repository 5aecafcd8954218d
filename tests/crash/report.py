"""The requested extent of a campaign, and its results and findings.

Plain records, which only the campaign fills.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.crash.checking import Findings


@dataclass(frozen=True, slots=True)
class Extent:
    """The extent of a campaign: it ends when it has reached both its kills and its seconds."""

    seed: int
    kills: int
    seconds: float
    worlds: tuple[str, ...] = ("disk", "s3")
    """Run one after the other, each with its share of kills and seconds."""
    writers: int = 8
    processes: int = 2
    rows_per_s: float = 6_000.0
    longest_s: float = 2.5
    """The longest writing time between two kills, without pauses."""
    spark: bool = True


@dataclass(slots=True)
class Report:
    """The results and findings of a campaign."""

    findings: Findings = field(default_factory=Findings)
    kills: Counter[str] = field(default_factory=Counter)
    troubles: Counter[str] = field(default_factory=Counter)
    refused_starts: int = 0
    """Processes that a trouble ended before they served."""
    restarts_s: list[float] = field(default_factory=list)
    checks_s: list[float] = field(default_factory=list)
    seconds: float = 0.0
    acknowledged_rows: int = 0
    sent_rows: int = 0
    files: int = 0
    read_at_end: Counter[str] = field(default_factory=Counter)
    """Rows, by the way they were read."""
    last_refusal: str = ""
    """The last log lines of the last refused start."""
    history: list[str] = field(default_factory=list)
    """The offline checker's verdicts, with the number of checked events."""

    @property
    def killed(self) -> int:
        """The number of all kills."""
        return sum(self.kills.values())

    @property
    def troubled(self) -> dict[str, int]:
        """Troubles of daemons and worlds by kind, except faults of store requests."""
        return {kind: n for kind, n in sorted(self.troubles.items()) if "request" not in kind}

    @property
    def store_faults(self) -> dict[str, int]:
        """Store requests that failed or were lied about, by kind."""
        return {k: n for k, n in sorted(self.troubles.items()) if "request" in k}
