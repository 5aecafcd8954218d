"""How much of a campaign was asked for, and what it did and found.

Law of this file: plain records; the campaign alone fills them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.crash.checking import Findings


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of a campaign: it ends when it has both so many kills and so many seconds."""

    seed: int
    kills: int
    seconds: float
    worlds: tuple[str, ...] = ("disk", "s3")
    """One after the other, each with its share of kills and seconds."""
    writers: int = 8
    processes: int = 2
    rows_per_s: float = 6_000.0
    longest_s: float = 2.5
    """The longest time that writers write between two kills, pauses apart."""
    spark: bool = True


@dataclass(slots=True)
class Report:
    """What a campaign did and found."""

    findings: Findings = field(default_factory=Findings)
    kills: Counter[str] = field(default_factory=Counter)
    troubles: Counter[str] = field(default_factory=Counter)
    refused_starts: int = 0
    """Processes that ended by themselves because of a trouble before they served."""
    restarts_s: list[float] = field(default_factory=list)
    checks_s: list[float] = field(default_factory=list)
    seconds: float = 0.0
    acknowledged_rows: int = 0
    sent_rows: int = 0
    files: int = 0
    read_at_end: Counter[str] = field(default_factory=Counter)
    """Rows, by how they were read."""
    last_refusal: str = ""
    """What the last of the refused starts logged at its end."""
    history: list[str] = field(default_factory=list)
    """What the offline checker said, and of how much."""

    @property
    def killed(self) -> int:
        """All kills."""
        return sum(self.kills.values())

    @property
    def troubled(self) -> dict[str, int]:
        """What befell daemons and worlds, by kind, stores' requests apart."""
        return {kind: n for kind, n in sorted(self.troubles.items()) if "request" not in kind}

    @property
    def store_faults(self) -> dict[str, int]:
        """Requests that a store failed or lied about, by how."""
        return {k: n for k, n in sorted(self.troubles.items()) if "request" in k}
