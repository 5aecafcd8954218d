"""What a comparison found: a verdict on each table, and the rows that differ.

    equal        the same rows in both, or each difference was a change on its way
    differs      rows that are not the same, by key and column; or no copy, or no source
    changing     rows that were never still for long enough to be compared
    behind       rows that differ, and a copy that has not come to where the source was read
    failed       what the source refuses to show
    set_aside    not followed, and why; what the copy has is not compared
    left         not at the source or in the publication any more; the copy stays as it was

Law of this file: pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

Verdict = Literal["equal", "differs", "changing", "behind", "failed", "set_aside", "left"]
RowFault = Literal["missing", "extra", "repeated", "values"]
SHOWN_ROWS = 20
"""The rows of a table that are named; the others are counted."""


class ColumnDifference(msgspec.Struct, frozen=True):
    """A value that is not the same, as PostgreSQL would write both; the first part of long ones."""

    column: str
    source: str | None
    copy: str | None


class RowDifference(msgspec.Struct, frozen=True):
    """A row that is missing here, is only here, stands here twice, or has other values."""

    key: dict[str, str | None]
    fault: RowFault
    columns: tuple[ColumnDifference, ...] = ()


class TableVerdict(msgspec.Struct, frozen=True):
    """The verdict on one table.

    Attributes:
        table: Its name here.
        source: Schema and name at the source.
        source_rows: The rows that the source had when it was read; ``copy_rows``: those of the
            copy, a little later. Between the two reads rows may come and go.
        differing: The rows that differ; at least so many where ``more`` holds.
        unsettled: The rows that differ and may yet be on their way.
        rows: The first of those that differ.
        reason: In words, where the rows do not say it.
        helps: What somebody can do about it.
    """

    table: str
    source: str
    verdict: Verdict
    source_rows: int | None = None
    copy_rows: int | None = None
    differing: int = 0
    more: bool = False
    unsettled: int = 0
    rows: tuple[RowDifference, ...] = ()
    reason: str = ""
    helps: tuple[str, ...] = ()


def all_equal(verdicts: Sequence[TableVerdict], *, ignores_set_aside: bool = False) -> bool:
    """Return whether every table is equal, and there is one.

    Args:
        ignores_set_aside: whether those are fine that are not followed, set aside or left.
    """
    fine = {"equal", "set_aside", "left"} if ignores_set_aside else {"equal"}
    return bool(verdicts) and all(verdict.verdict in fine for verdict in verdicts)
