"""Hooks that decide by time, or by the data, whether a region may swap.

MinimumDelay      ``minimum_delay.delay`` passes between two swaps
TimeWindow        swaps happen within a window of time
StatisticsCheck   rows, nulls and bytes are close to those of the current generation
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import ClassVar, NamedTuple
from zoneinfo import ZoneInfo

from ingester.pushes.hooks import (
    PROCEED,
    Answer,
    ConfigContext,
    HookContext,
    LifecycleHooks,
    VersionStatistics,
    abort,
    rollback,
    wait,
)
from ingester.pushes.shipped.options import checked, choice, duration, number
from ingester.pushes.states import Status

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_HOURS = re.compile(r"(\d\d):(\d\d)-(\d\d):(\d\d)")
_DAY_MINUTES = 24 * 60


class MinimumDelay(LifecycleHooks):
    """Lets a region swap once the last one has served for ``minimum_delay.delay``."""

    asks_anew: ClassVar[bool] = True
    options: ClassVar[Mapping[str, str] | None] = {
        "minimum_delay.delay": "minimum time between two swaps, e.g. 15m (1h)",
    }

    def _delay(self) -> timedelta:
        return duration(self.config, "minimum_delay.delay", "1h")

    def validate_hook_config(self, context: ConfigContext) -> Answer:
        """Check the delay."""
        return checked(self._delay)

    def pre_version_swap(self, context: HookContext) -> Answer:
        """Wait until the last swap of the push is old enough.

        A region that may swap counts, although it is not live yet: while its followers or its store
        are waited for, no other region starts.
        """
        for each in context.regions:
            if each.swapping and each.name != context.region:
                return wait(f"region {each.name} is about to switch")
        serving = [each for each in context.regions if each.status is Status.SERVING]
        if not serving:
            return PROCEED
        last = max(serving, key=lambda each: each.since)
        due = last.since + self._delay()
        if context.now >= due:
            return PROCEED
        return wait(
            f"region {last.name} serves since {last.since.isoformat()}; until {due.isoformat()}"
        )


class Window(NamedTuple):
    """Days and minutes of the day in a time zone. The start is included, the end is not.

    A window that ends at or before its start spans midnight and belongs to the day of its start:
    ``end`` is then above 24 hours.
    """

    days: frozenset[int]
    begin: int
    end: int
    zone: ZoneInfo

    def has(self, moment: datetime) -> bool:
        """Return whether the moment is in the window."""
        local = moment.astimezone(self.zone)
        minute = local.hour * 60 + local.minute
        today = local.weekday() in self.days and self.begin <= minute < self.end
        yesterday = (local - timedelta(days=1)).weekday() in self.days
        return today or (yesterday and minute < self.end - _DAY_MINUTES)


_WINDOW_DEFAULTS = {
    "time_window.days": "mon-sun",
    "time_window.hours": "00:00-24:00",
    "time_window.zone": "UTC",
}


class TimeWindow(LifecycleHooks):
    """Lets regions swap within a window of time."""

    asks_anew: ClassVar[bool] = True
    options: ClassVar[Mapping[str, str] | None] = {
        "time_window.days": "days, e.g. mon-fri or mon,wed,fri (mon-sun)",
        "time_window.hours": "hours, e.g. 09:00-17:00 or 22:00-04:00 (00:00-24:00)",
        "time_window.zone": "time zone, e.g. Europe/Berlin (UTC)",
    }

    def window(self) -> Window:
        """Return the configured window, or raise ``ValueError`` naming the invalid key."""
        days, hours, zone = (self.config.get(*each) for each in _WINDOW_DEFAULTS.items())
        try:
            where = ZoneInfo(zone)
        except (KeyError, ValueError, OSError) as exc:
            raise ValueError(f"time_window.zone: {zone!r} is no known time zone ({exc})") from exc
        begin, end = _hours(hours)
        return Window(_days(days), begin, end, where)

    def validate_hook_config(self, context: ConfigContext) -> Answer:
        """Check the window."""
        return checked(self.window)

    def pre_version_swap(self, context: HookContext) -> Answer:
        """Wait for the window."""
        if self.window().has(context.now):
            return PROCEED
        days, hours, zone = (self.config.get(*each) for each in _WINDOW_DEFAULTS.items())
        return wait(f"outside the window: {days}, {hours} {zone}")


def _days(text: str) -> frozenset[int]:
    days: set[int] = set()
    for part in text.lower().split(","):
        first, dash, last = part.strip().partition("-")
        if first not in DAYS or (dash and last not in DAYS):
            raise ValueError(f"time_window.days: {text!r} is not like mon-fri or mon,wed,fri")
        begin, end = DAYS.index(first), DAYS.index(last or first)
        length = (end - begin) % 7
        days |= {(begin + step) % 7 for step in range(length + 1)}
    return frozenset(days)


def _hours(text: str) -> tuple[int, int]:
    match = _HOURS.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"time_window.hours: {text!r} is not like 09:00-17:00")
    h1, m1, h2, m2 = (int(part) for part in match.groups())
    begin, end = h1 * 60 + m1, h2 * 60 + m2
    if m1 > 59 or m2 > 59 or begin >= _DAY_MINUTES or end > _DAY_MINUTES:
        raise ValueError(f"time_window.hours: {text!r} has an invalid time of day")
    if begin == end:
        raise ValueError(f"time_window.hours: {text!r} is empty; a whole day is 00:00-24:00")
    return begin, end if end > begin else end + _DAY_MINUTES


class StatisticsCheck(LifecycleHooks):
    """Compares the new generation to the current one before a swap.

    Missing statistics count as a difference, and a dropped column counts as null in every row.
    """

    wants_statistics: ClassVar[bool] = True
    options: ClassVar[Mapping[str, str] | None] = {
        "statistics.row_loss": "largest allowed loss, as a share of the rows (0.1)",
        "statistics.row_gain": "largest allowed growth, as a multiple of the rows (unlimited)",
        "statistics.null_rise": "largest allowed rise of a column's share of nulls (0.05)",
        "statistics.bytes_per_row": "largest allowed growth of a row, as a multiple (2)",
        "statistics.answer": "answer to a difference: abort or rollback (abort)",
    }

    def _read(self) -> None:
        for key in ("row_loss", "row_gain", "null_rise", "bytes_per_row"):
            number(self.config, f"statistics.{key}")
        choice(self.config, "statistics.answer", "abort", "rollback")

    def validate_hook_config(self, context: ConfigContext) -> Answer:
        """Check the limits."""
        return checked(self._read)

    def pre_version_swap(self, context: HookContext) -> Answer:
        """Proceed if every difference is within its limit."""
        faults = list(self._faults(context))
        if not faults:
            return PROCEED
        reason = "; ".join(faults)
        back = choice(self.config, "statistics.answer", "abort", "rollback") == "rollback"
        return rollback(reason) if back else abort(reason)

    def _faults(self, context: HookContext) -> Iterator[str]:
        if context.statistics is None:
            yield "the new generation has no statistics"
            return
        new, current = context.statistics.new, context.statistics.current
        if current is None or not current.rows:
            return
        yield from self._rows(new, current)
        if new.rows:
            yield from self._nulls(new, current)
            yield from self._bytes(new, current)

    def _limit(self, key: str, default: float | None) -> float | None:
        return number(self.config, f"statistics.{key}", default)

    def _rows(self, new: VersionStatistics, current: VersionStatistics) -> Iterator[str]:
        loss, gain = self._limit("row_loss", 0.1), self._limit("row_gain", None)
        change = f"from {current.rows:,} to {new.rows:,}"
        least = None if loss is None else current.rows * (1 - loss)
        if not new.rows or (least is not None and new.rows < least):
            yield f"row count fell {change} (limit: {least or 1:,.0f})"
        if gain is not None and new.rows > current.rows * gain:
            yield f"row count rose {change} (limit: {current.rows * gain:,.0f})"

    def _nulls(self, new: VersionStatistics, current: VersionStatistics) -> Iterator[str]:
        rise = self._limit("null_rise", 0.05)
        assert rise is not None
        for column, before in current.nulls.items():
            nulls = new.nulls.get(column, new.rows)
            if nulls is None or before is None:
                which = "new" if nulls is None else "current"
                yield f"column {column!r}: the {which} generation has no count of nulls"
                continue
            was, now = before / current.rows, nulls / new.rows
            if now > was + rise:
                yield (
                    f"column {column!r}: share of nulls rose from {was:.1%} to {now:.1%}"
                    f" (limit: {was + rise:.1%})"
                )

    def _bytes(self, new: VersionStatistics, current: VersionStatistics) -> Iterator[str]:
        times = self._limit("bytes_per_row", 2.0)
        was, now = current.bytes / current.rows, new.bytes / new.rows
        if times is not None and now > was * times:
            yield f"bytes per row rose from {was:.0f} to {now:.0f} (limit: {was * times:.0f})"
