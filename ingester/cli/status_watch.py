"""``status --watch``: a daemon's state, anew every few seconds, until a signal.

    a thread of its own ─ asks ─▶ the last answer, or why there is none ─▶ the main thread shows it

Law of this file: nothing hides an alarm: what somebody has to act on stands on top, then what is
refused, then figures, and lists have the rest of the screen. A daemon that does not answer leaves
its last figures, said to be old. The main thread waits for a signal and never for the daemon. On a
terminal the screen is given back as it was; in a pipe each look is a block, or a line of JSON.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from ingester.client import ClientError
from ingester.shown_text import escaped

from .connecting import connect
from .exits import UNREACHABLE, USAGE, CommandFailed, exit_code, stopped_by_signals
from .printing import print_json, print_line, shown, size, table_of
from .status import entries, part

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

EVERY_S, LEAST_S, MOST_S = 2.0, 0.2, 3600.0
SPARKS = "▁▂▃▄▅▆▇█"
KEPT = 60
"""The looks whose rates are drawn."""
BAR = 20
WIDE = 70
"""The columns of a terminal from which on lists are whole."""


class Look(msgspec.Struct, frozen=True):
    """What is known at one moment."""

    status: Mapping[str, Any] | None
    """The last answer; None before the first."""
    at: float
    """When that came, seconds since 1970."""
    problem: str
    """Why there is no newer one; empty where it is of now."""


def watch_status(endpoint: str, every_s: float | None, as_json: bool) -> None:
    """Show the status until SIGINT or SIGTERM.

    Args:
        every_s: seconds between two looks; None is ``EVERY_S``.
        as_json: print one JSON object a line, and nothing where the daemon does not answer.

    Raises:
        CommandFailed: the seconds are not between ``LEAST_S`` and ``MOST_S``.
        ClientError: the daemon refuses, or is away at the start.
    """
    every_s = EVERY_S if every_s is None else every_s
    if not LEAST_S <= every_s <= MOST_S:
        raise CommandFailed(
            f"--watch {every_s:g}: give {LEAST_S:g} to {MOST_S:g} seconds", exit_code=USAGE
        )
    stopped = stopped_by_signals()
    looks = _Looks(endpoint, every_s, stopped)
    looks.begin()
    if as_json or not sys.stdout.isatty():
        for look in looks.each():
            _print_block(look, as_json)
    else:
        _show(looks, stopped)
    looks.raise_refusal()


class _Looks:
    """Asks the daemon in a thread, since a call does not end by a signal."""

    def __init__(self, endpoint: str, every_s: float, stopped: threading.Event) -> None:
        self._endpoint, self._every_s, self._stopped = endpoint, every_s, stopped
        self._came = threading.Condition()
        self._number = 0
        self._refusal: ClientError | None = None
        self.last = Look(None, 0.0, "not asked yet")

    def begin(self) -> None:
        """Ask from now on."""
        threading.Thread(target=self._ask, name="ingester-status", daemon=True).start()

    def each(self) -> Iterator[Look]:
        """Yield each look when it comes, until the end."""
        seen = 0
        while not self._stopped.is_set():
            with self._came:
                # Not without an end: a signal is heard between two of these.
                self._came.wait(timeout=0.0 if self._number > seen else 0.2)
                news, seen = self._number > seen, self._number
            if news and not self._stopped.is_set():
                yield self.last

    def raise_refusal(self) -> None:
        """Raise what has ended the looks, where it was no signal."""
        if self._refusal is not None:
            raise self._refusal

    def _ask(self) -> None:
        with connect(self._endpoint) as client:
            while not self._stopped.is_set():
                try:
                    look = Look(client.status(), time.time(), "")
                except ClientError as exc:
                    # What refuses the first look will refuse the others: a token, a wrong address.
                    if self.last.status is None or exit_code(exc) != UNREACHABLE:
                        self._refusal = exc
                        self._stopped.set()
                        return
                    look = Look(self.last.status, self.last.at, str(exc))
                with self._came:
                    self.last = look
                    self._number += 1
                    self._came.notify_all()
                self._stopped.wait(self._every_s)


def _print_block(look: Look, as_json: bool) -> None:
    from rich.console import Console

    if as_json:
        if not look.problem:
            print_json(look.status, indent=-1)
        return
    # A pipe has no width: nothing is folded.
    console = Console(width=100_000, highlight=False, soft_wrap=True, color_system=None)
    for each in screen(look, deque(), time.time()):
        console.print(each)
    print_line("")


def _show(looks: _Looks, stopped: threading.Event) -> None:
    from rich.console import Console, Group
    from rich.live import Live

    rates: deque[float] = deque(maxlen=KEPT)
    console, seen = Console(highlight=False), 0.0
    with Live(console=console, screen=True, auto_refresh=False, redirect_stderr=False) as live:
        while not stopped.is_set():
            look = looks.last
            if look.at != seen and look.status is not None:
                seen = look.at
                rates.append(_rate(look.status))
            parts = screen(look, rates, time.time(), console.width)
            live.update(Group(*parts), refresh=True)
            # The age of an old answer goes on, whether the daemon answers or not.
            stopped.wait(0.5)


def screen(look: Look, rates: deque[float], now: float, width: int = WIDE) -> list[RenderableType]:
    """Give the parts of the screen, the most pressing first.

    Args:
        rates: the rows per second of the last looks, for a small plot; may be empty.
        now: seconds since 1970.
        width: columns of the terminal; where they are few, lists have fewer of theirs.
    """
    from rich.text import Text

    status = look.status
    if status is None:
        return [Text(f"waiting for the first answer: {escaped(look.problem)}")]
    parts: list[RenderableType] = [_title(status, look.at)]
    if look.problem:
        said = f"NOT REACHED for {now - look.at:.0f} s: {escaped(look.problem)}"
        parts.append(Text(f"{said}\nWhat follows is old.", style="bold red"))
    parts += _alarms(status)
    parts.append(table_of(["", ""], _figures(status, rates)))
    parts += _lists(status, narrow=width < WIDE)
    return parts


def _title(status: Mapping[str, Any], at: float) -> Text:
    from rich.text import Text

    identity = part(status, "identity")
    state = escaped(str(identity.get("state")))
    text = Text(escaped(f"ingester {identity.get('ingester_id')}: "), style="bold")
    text.append(state, style="bold green" if state == "ready" else "bold yellow")
    up = f"  version {identity.get('version')}, up {span(identity.get('uptime_s'))}, epoch"
    text.append(escaped(f"{up} {identity.get('epoch')}; {utc(at)}"), style="default")
    return text


def _alarms(status: Mapping[str, Any]) -> list[RenderableType]:
    from rich.text import Text

    found: list[RenderableType] = []
    for each in entries(status, "alarms"):
        word = str(each.get("severity", "")).upper()
        said = f"{word} {each.get('name')} since {each.get('since')}: {each.get('message')}"
        line = Text(escaped(said), style="bold red" if word == "CRITICAL" else "bold yellow")
        line.append(escaped(f" (RUNBOOK: {each.get('runbook')})"), style="default")
        found.append(line)
    admission = part(status, "admission")
    for reason in entries(admission, "reasons"):
        said = f"writes are refused: {reason.get('code')}: {reason.get('message')}"
        found.append(Text(escaped(said), style="yellow"))
    return found or [Text("no alarms", style="green")]


def _figures(status: Mapping[str, Any], rates: deque[float]) -> list[tuple[str, str]]:
    recent = part(part(status, "rates"), "last_10s")
    memory, work = part(part(status, "admission"), "memory"), part(status, "persist")
    log, disk, store = part(status, "log"), part(status, "disk"), part(status, "store_state")
    streams = part(status, "streams")
    used, limit = memory.get("used_bytes") or 0, memory.get("limit_bytes") or 1
    full = min(BAR, round(BAR * used / limit))
    free = f", {size(disk.get('log_free_bytes'))} free" if disk.get("log_free_bytes") else ""
    away = f", since {store.get('since')}" if store.get("state") == "away" else ""
    return [
        ("rows", f"{_rate(status):,.0f}/s  {sparks(rates)}"),
        ("bytes", f"{size(recent.get('bytes_per_s'))}/s"),
        ("queries", f"{recent.get('queries_per_s') or 0:.3g}/s, {shown(streams.get('open'))} open"),
        ("memory", f"{size(used)} of {size(limit)}  {'█' * full}{'░' * (BAR - full)}"),
        ("oldest row in no file", span(status.get("oldest_unpersisted_s"))),
        (
            "persists",
            f"{shown(work.get('queued_jobs'))} queued ({size(work.get('queued_bytes'))}),"
            f" {shown(work.get('active'))} active, {shown(work.get('failed_attempts'))} failed",
        ),
        ("log", f"{size(log.get('bytes'))}{free}{', DISK FULL' if disk.get('full') else ''}"),
        ("store", f"{store.get('state', 'unknown')}{away}"),
    ]


def _lists(status: Mapping[str, Any], narrow: bool) -> list[RenderableType]:
    found: list[RenderableType] = []
    problems = [
        (each.get("at"), each.get("message") or each.get("event"))
        for each in entries(status, "errors")[:3]
    ]
    if problems:
        found.append(table_of(["at", "problem"], problems, "\nlast errors"))
    tables = [
        (
            f"{each.get('namespace')}/{each.get('table')}",
            part(each, "buffered").get("rows"),
            size(part(each, "buffered").get("bytes")),
            span(each.get("oldest_buffered_s")),
            part(each, "persisted").get("rows"),
        )
        for each in entries(status, "tables")
    ]
    if tables:
        headings = ["table", "in buffer", "memory", "oldest", "in files"]
        kept = 3 if narrow else len(headings)
        rows = [row[:kept] for row in tables]
        found.append(table_of(headings[:kept], rows, "\ntables, most in memory first"))
    return found


def _rate(status: Mapping[str, Any]) -> float:
    return float(part(part(status, "rates"), "last_10s").get("rows_per_s") or 0)


def sparks(values: deque[float]) -> str:
    """Draw values as blocks from nothing to the highest, one character each."""
    top = max(values, default=0.0)
    if top <= 0:
        return SPARKS[0] * len(values)
    return "".join(SPARKS[min(7, int(8 * value / top))] for value in values)


def span(seconds: object) -> str:
    """A time for people: ``12 s``, ``4.5 min``."""
    if not isinstance(seconds, int | float):
        return "-"
    for unit, length_s in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.1f} {unit}"
    return f"{seconds:.0f} s"


def utc(seconds: float) -> str:
    """A moment as ``18:02:31 Z``."""
    return time.strftime("%H:%M:%S Z", time.gmtime(seconds))
