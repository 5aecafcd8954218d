"""Swaps happen in a window of time alone, in a time zone of one's own.

    time_window.days = "mon-fri"     time_window.hours = "09:00-17:00"    time_window.zone = "UTC"

Law of this file: a window has its begin and not its end. One that ends at or before its begin goes
over midnight, and belongs to the day on which it begins; ``00:00-24:00`` is the whole day.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import ClassVar, NamedTuple
from zoneinfo import ZoneInfo

from ingester.pushes.answers import PROCEED, Answer, wait
from ingester.pushes.contexts import ConfigContext, HookContext
from ingester.pushes.hooks import LifecycleHooks
from ingester.pushes.shipped.options import checked

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_HOURS = re.compile(r"(\d\d):(\d\d)-(\d\d):(\d\d)")
_DAY_MINUTES = 24 * 60


class Window(NamedTuple):
    """The days on which it begins, and minutes of the day; ``end`` may be on the next one."""

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


_DEFAULTS = {
    "time_window.days": "mon-sun",
    "time_window.hours": "00:00-24:00",
    "time_window.zone": "UTC",
}


class TimeWindow(LifecycleHooks):
    """Lets regions swap in a window of time."""

    asks_anew: ClassVar[bool] = True
    options: ClassVar[Mapping[str, str] | None] = {
        "time_window.days": "the days, as mon-fri or mon,wed,fri (mon-sun)",
        "time_window.hours": "the hours, as 09:00-17:00 or 22:00-04:00 (00:00-24:00)",
        "time_window.zone": "the time zone, as Europe/Berlin (UTC)",
    }

    def window(self) -> Window:
        """Return the configured window, or raise ``ValueError`` with the key that is wrong."""
        days, hours, zone = (self.config.get(*each) for each in _DEFAULTS.items())
        try:
            where = ZoneInfo(zone)
        except (KeyError, ValueError, OSError) as exc:
            raise ValueError(f"time_window.zone: {zone!r} is no time zone here ({exc})") from exc
        begin, end = _hours(hours)
        return Window(_days(days), begin, end, where)

    def validate_hook_config(self, context: ConfigContext) -> Answer:
        """Check the window."""
        return checked(self.window)

    def pre_version_swap(self, context: HookContext) -> Answer:
        """Wait for the window."""
        if self.window().has(context.now):
            return PROCEED
        days, hours, zone = (self.config.get(*each) for each in _DEFAULTS.items())
        return wait(f"outside of the window: {days}, {hours} {zone}")


def _days(text: str) -> frozenset[int]:
    days: set[int] = set()
    for part in text.lower().split(","):
        first, dash, last = part.strip().partition("-")
        if first not in DAYS or (dash and last not in DAYS):
            raise ValueError(f"time_window.days: {text!r} is not as mon-fri or mon,wed,fri")
        begin, end = DAYS.index(first), DAYS.index(last or first)
        length = (end - begin) % 7
        days |= {(begin + step) % 7 for step in range(length + 1)}
    return frozenset(days)


def _hours(text: str) -> tuple[int, int]:
    match = _HOURS.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"time_window.hours: {text!r} is not as 09:00-17:00")
    h1, m1, h2, m2 = (int(part) for part in match.groups())
    begin, end = h1 * 60 + m1, h2 * 60 + m2
    if m1 > 59 or m2 > 59 or begin >= _DAY_MINUTES or end > _DAY_MINUTES:
        raise ValueError(f"time_window.hours: {text!r} has a time that no day has")
    if begin == end:
        raise ValueError(f"time_window.hours: {text!r} is empty; a whole day is 00:00-24:00")
    return begin, end if end > begin else end + _DAY_MINUTES
