"""The new version holds about what the current one does: rows, nulls by column, bytes by row.

Law of this file: what the statistics do not say is not taken for good: a column whose nulls are not
known, a region that tells nothing, leads to the same answer as a bad one. A column that the new
version does not have any more counts as null in every row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from ingester.pushes.answers import PROCEED, Answer, abort, rollback
from ingester.pushes.contexts import ConfigContext, HookContext, VersionStatistics
from ingester.pushes.hooks import LifecycleHooks
from ingester.pushes.shipped.options import checked, choice, number


class StatisticsCheck(LifecycleHooks):
    """Compares the versions of a region before its swap."""

    wants_statistics: ClassVar[bool] = True
    options: ClassVar[Mapping[str, str] | None] = {
        "statistics.row_loss": "the share of rows that may be gone (0.1)",
        "statistics.row_gain": "how many times as many rows there may be (no bound)",
        "statistics.null_rise": "by how much a column's share of nulls may rise (0.05)",
        "statistics.bytes_per_row": "how many times as large a row may be (2)",
        "statistics.answer": "what a difference leads to: abort or rollback (abort)",
    }

    def _read(self) -> None:
        for key in ("row_loss", "row_gain", "null_rise", "bytes_per_row"):
            number(self.config, f"statistics.{key}")
        choice(self.config, "statistics.answer", "abort", "rollback")

    def validate_hook_config(self, context: ConfigContext) -> Answer:
        """Check the bounds."""
        return checked(self._read)

    def pre_version_swap(self, context: HookContext) -> Answer:
        """Go on only where nothing differs by more than it may."""
        faults = list(self._faults(context))
        if not faults:
            return PROCEED
        reason = "; ".join(faults)
        back = choice(self.config, "statistics.answer", "abort", "rollback") == "rollback"
        return rollback(reason) if back else abort(reason)

    def _faults(self, context: HookContext) -> Iterator[str]:
        if context.statistics is None:
            yield "there are no statistics of the new version"
            return
        new, current = context.statistics.new, context.statistics.current
        if current is None or not current.rows:
            return
        yield from self._rows(new, current)
        if new.rows:
            yield from self._nulls(new, current)
            yield from self._bytes(new, current)

    def _bound(self, key: str, default: float | None) -> float | None:
        return number(self.config, f"statistics.{key}", default)

    def _rows(self, new: VersionStatistics, current: VersionStatistics) -> Iterator[str]:
        loss, gain = self._bound("row_loss", 0.1), self._bound("row_gain", None)
        if (loss is not None and new.rows < current.rows * (1 - loss)) or not new.rows:
            yield f"{new.rows} rows, and {current.rows} before"
        if gain is not None and new.rows > current.rows * gain:
            yield f"{new.rows} rows, and {current.rows} before"

    def _nulls(self, new: VersionStatistics, current: VersionStatistics) -> Iterator[str]:
        rise = self._bound("null_rise", 0.05)
        assert rise is not None
        for column, before in current.nulls.items():
            nulls = new.nulls.get(column, new.rows)
            if nulls is None or before is None:
                which = "new" if nulls is None else "current"
                yield f"column {column!r}: the {which} version does not say how much of it is null"
                continue
            was, now = before / current.rows, nulls / new.rows
            if now > was + rise:
                yield f"column {column!r} is null in {now:.1%} of the rows, and was in {was:.1%}"

    def _bytes(self, new: VersionStatistics, current: VersionStatistics) -> Iterator[str]:
        times = self._bound("bytes_per_row", 2.0)
        was, now = current.bytes / current.rows, new.bytes / new.rows
        if times is not None and now > was * times:
            yield f"{now:.0f} bytes a row, and {was:.0f} before"
