"""The levels of the log, which an operator can change at run time.

    log.level of the settings ◀── all loggers, set at run time ◀── ``wal`` ◀── ``wal.disk``

The level of the longest matching logger name applies. A level set for a time expires by itself. A
logger looks its level up at each event, in a dict, so that changes apply at once to existing
loggers. Libraries with Python's ``logging`` get theirs through that module; it is ``warning``
unless it is set by name. Any thread may read; only the event loop sets.
"""

from __future__ import annotations

import difflib
import logging
import math
import sys
import time
from collections.abc import Callable
from typing import Any, Literal, get_args

import msgspec
import structlog
import trio

Level = Literal["debug", "info", "warning", "error"]
LEVELS: tuple[Level, ...] = get_args(Level)
ALL = ""
"""The name of all loggers of ours."""
OURS = ("ingester", "persist", "wal")
"""The packages whose loggers look up their level here."""
LONGEST_S = 30 * 86_400.0
"""The longest time for which a level can be set."""
LIBRARIES: Level = "warning"
MOST = 100
"""The most loggers with a level of their own."""

log = structlog.get_logger(__name__)


class LevelSet(msgspec.Struct, frozen=True, kw_only=True):
    """A level set at run time.

    Attributes:
        logger: the name that it applies to, with everything below it; empty for all our loggers.
        until: when it expires, as ISO 8601 in UTC; null if it does not.
    """

    logger: str
    level: Level
    until: str | None = None


class LogLevelStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The level of the settings, and the levels set since the start."""

    level: str = "info"
    """The setting ``log.level``."""
    set: list[LevelSet] = []


class LogLevels:
    """Levels by logger name.

    Args:
        level: the level of the settings.
        clock: monotonic seconds.
    """

    def __init__(self, level: Level = "info", clock: Callable[[], float] = time.monotonic) -> None:
        self._level: Level = level
        self._clock = clock
        self._set: dict[str, tuple[Level, float]] = {}
        self._found: dict[str, Level] = {}
        self._changed = trio.Event()

    def level_of(self, logger: str) -> Level:
        """Return the level of one of our loggers. Any thread."""
        known = self._found
        found = known.get(logger)
        if found is None:
            known[logger] = found = self._look_up(logger)
        return found

    def bound_logger(self, logger: Any, **more: Any) -> Any:
        """Return structlog's logger for one event, filtered by the current level."""
        level = self.level_of(getattr(logger, "name", ALL))
        bound: Any = structlog.make_filtering_bound_logger(level)
        return bound(logger, **more)

    def set(self, level: Level | None, logger: str = ALL, for_s: float | None = None) -> None:
        """Set the level of a logger and everything below it; call on the loop.

        Args:
            level: None resets this logger and those below it; without a logger, all.
            for_s: after this many seconds the previous level applies again.

        Raises:
            ValueError: there is no such logger, or the time is out of range.
        """
        _check(logger, for_s, has_level=level is not None)
        left = {
            name: value for name, value in self._set.items() if level or not _covers(logger, name)
        }
        if level is not None:
            left[logger] = (level, math.inf if for_s is None else self._clock() + for_s)
        if len(left) > MOST:
            raise ValueError(f"{MOST} loggers have a level of their own: take one back first")
        told = {"level": level or "default", "logger": logger or "all", "for_s": for_s}
        # Said while the more talkative of the two levels holds.
        if level in ("warning", "error"):
            log.info("log level set", **told)
            self._replace(left)
        else:
            self._replace(left)
            log.info("log level set", **told)

    def status(self) -> LogLevelStatus:
        """Return the current levels. On the loop."""
        now, wall = self._clock(), time.time()
        return LogLevelStatus(
            level=self._level,
            set=[
                LevelSet(
                    logger=name,
                    level=level,
                    until=None if at == math.inf else _utc(wall + at - now),
                )
                for name, (level, at) in sorted(self._set.items())
            ],
        )

    async def run(self) -> None:
        """Expire levels until cancelled."""
        while True:
            next_at = min((at for _, at in self._set.values()), default=math.inf)
            with trio.move_on_after(max(next_at - self._clock(), 0.0)):
                await self._changed.wait()
            now = self._clock()
            over = [name for name, (_, at) in self._set.items() if at <= now]
            if over:
                self._replace({k: v for k, v in self._set.items() if k not in over})
                log.info("log level fell back", loggers=[name or "all" for name in over])

    def _replace(self, levels: dict[str, tuple[Level, float]]) -> None:
        before, self._set = self._set, levels
        # A thread that looks up at this moment puts its answer into the dict that is dropped.
        self._found = {}
        for name in {*before, *levels}:
            if not _is_ours(name):
                level = levels[name][0] if name in levels else None
                logging.getLogger(name).setLevel(_number(level) if level else logging.NOTSET)
        self._changed.set()
        self._changed = trio.Event()

    def _look_up(self, logger: str) -> Level:
        name = logger
        while True:
            if name in self._set:
                return self._set[name][0]
            if name == ALL:
                return self._level
            name = name.rpartition(".")[0]


def _check(logger: str, for_s: float | None, has_level: bool) -> None:
    if for_s is not None and not has_level:
        raise ValueError("a time needs a level that holds so long")
    if for_s is not None and not 1.0 <= for_s <= LONGEST_S:
        raise ValueError(f"{for_s:g} s is not between 1 s and {LONGEST_S / 86_400:g} days")
    if logger == ALL or logger in known_loggers():
        return
    close = difflib.get_close_matches(logger, known_loggers(), 1)
    meant = f"; did you mean {close[0]!r}?" if close else ""
    raise ValueError(f"there is no logger {logger[:128]!r}{meant}")


def known_loggers() -> set[str]:
    """Return the names that can have a level: our modules, and libraries that have logged."""
    ours = {name for name in list(sys.modules) if _is_ours(name)}
    libraries = {name for name in list(logging.root.manager.loggerDict) if not _is_ours(name)}
    return ours | libraries


def _covers(name: str, other: str) -> bool:
    return name == ALL or other == name or other.startswith(name + ".")


def _is_ours(name: str) -> bool:
    return name == ALL or name.partition(".")[0] in OURS


def _number(level: Level) -> int:
    return int(logging.getLevelNamesMapping()[level.upper()])


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
