"""The report of a rewrite, and the sizes that it goes by.

Law of this file: values only; both halves of compaction, the one with PySpark and the one without,
take them from here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

TARGET_FILE_BYTES = 128 << 20
WAVE_BYTES = 4 << 30
"""The bytes that one commit has at most: a driver that dies loses no more of its work, and no
clean-up takes new files for forgotten ones before they are committed, minutes later."""
ROUNDS = 10
"""The number of times that what is left is planned anew, where others are faster."""


@dataclass(slots=True)
class CompactionReport:
    """The outcome of a rewrite. Bytes are those of files.

    Attributes:
        version: The table's newest version afterwards.
        rows: Rows that were written anew.
        conflicts: Groups that somebody else had touched, and that were planned anew.
        left: Groups that could not be committed in the end; the next run takes them.
        refused: Why one of them will not be then either, where that is so: a value that no folder
            of its partition can have as a name. Its file stays as it is, and is read.
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


Progress = Callable[[CompactionReport, int, int], None]
"""A callback after each wave: told the report so far, the groups done, and those planned."""
