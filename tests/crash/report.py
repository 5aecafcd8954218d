"""How much of a campaign was asked for, and what it did and found.

Law of this file: plain records; the campaign alone fills them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.crash.checking import Findings


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of a campaign: it ends when it has both so many kills and so many seconds."""

    seed: int
    kills: int
    seconds: float
    writers: int = 8
    processes: int = 2
    rows_per_s: float = 20_000.0
    longest_s: float = 4.0
    """The longest time that writers write between two kills."""
    spark: bool = True


@dataclass(slots=True)
class Report:
    """What a campaign did and found."""

    findings: Findings = field(default_factory=Findings)
    kills: dict[str, int] = field(default_factory=dict)
    restarts_s: list[float] = field(default_factory=list)
    checks_s: list[float] = field(default_factory=list)
    seconds: float = 0.0
    acknowledged_rows: int = 0
    sent_rows: int = 0
    files: int = 0
    readers: list[str] = field(default_factory=list)

    @property
    def killed(self) -> int:
        """All kills."""
        return sum(self.kills.values())

    def count(self, kind: str) -> None:
        """One more kill of a kind."""
        self.kills[kind] = self.kills.get(kind, 0) + 1
