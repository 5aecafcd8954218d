"""The report of a rewrite, and its texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class CompactionReport:
    """The outcome of a rewrite. Bytes are sizes of files.

    Attributes:
        version: The table's newest version afterwards.
        rows: Rows that were rewritten.
        conflicts: Groups that another writer changed meanwhile and that were planned again.
        left: Groups that were not committed in the end; the next run retries them.
        refused: Why a group cannot be rewritten at all, if one cannot: a value is too long for a
            partition folder's name, or the files do not fit into memory. They stay as they are
            and remain readable.
    """

    namespace: str
    table: str
    version: int
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    rows: int = 0
    commits: int = 0
    conflicts: int = 0
    left: int = 0
    refused: str | None = None
    seconds: float = 0.0

    def text(self) -> str:
        """The report as a sentence."""
        if not self.files_before and not self.left:
            return f"{self.namespace}/{self.table}: nothing to do at version {self.version}"
        speed = self.bytes_before / 1e6 / max(self.seconds, 1e-9)
        return (
            f"{self.namespace}/{self.table}: {self.files_before} files"
            f" ({self.bytes_before / 1e6:.1f} MB) became {self.files_after}"
            f" ({self.bytes_after / 1e6:.1f} MB), {self.rows} rows, in {self.commits} commits up"
            f" to version {self.version}; {self.seconds:.1f} s, {speed:.1f} MB/s;"
            f" {self.conflicts} conflicts, {self.left} groups left"
            + (f"; refused: {self.refused}" if self.refused else "")
        )

    def progress_text(self, done: int, planned: int) -> str:
        """The progress of a running rewrite, as one line."""
        return (
            f"{self.namespace}/{self.table}: {done} of {planned} groups,"
            f" {self.bytes_before / 1e6:.1f} MB, version {self.version}"
        )


Progress = Callable[[CompactionReport, int, int], None]
"""Called after each wave with the report so far, the groups done, and the groups planned."""
