"""The screen of ``status --watch`` as parts that ``rich`` prints, the most urgent first.

Alarms are on top, then refusals, then figures; lists fill the rest of the screen. Values that are
not current are marked. Names and messages come from others, so all are escaped. Pure.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from ingester.shown_text import escaped

from .printing import shown, size, table_of
from .status import DAEMON_HEADINGS, entries, part, told_rows

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

SPARKS = "▁▂▃▄▅▆▇█"
BAR = 20
STORE_WORDS = {"ok": "reachable", "away": "unreachable"}
WIDE = 70
"""The terminal width from which lists have all columns."""
DAEMONS = "daemons"
"""The key of the list of answers, when several daemons are watched."""


class StatusLook(msgspec.Struct, frozen=True):
    """The result of the last request."""

    status: Mapping[str, Any] | None
    """The last answer; None before the first."""
    at: float
    """When it arrived, in seconds since 1970."""
    problem: str
    """Why there is no newer answer; empty if it is current."""
    code: str = ""
    """The code of that error."""


def screen(
    look: StatusLook, rates: deque[float], now: float, width: int = WIDE
) -> list[RenderableType]:
    """Return the parts of the screen, the most urgent first.

    Args:
        rates: rows per second of the last answers, for a small plot; may be empty.
        now: seconds since 1970.
        width: columns of the terminal; narrow ones get shorter lists.
    """
    from rich.text import Text

    status = look.status
    if status is None:
        return [Text(f"waiting for the first answer: {escaped(look.problem)}")]
    if DAEMONS in status:
        return _many(status, look.at)
    parts: list[RenderableType] = [_title(status, look.at)]
    if look.problem:
        said = f"Unreachable for {now - look.at:.0f} s; showing last known values"
        parts.append(Text(f"{said}: {escaped(look.problem)}", style="bold red"))
    parts += _alarms(status)
    parts.append(table_of(["", ""], _figures(status, rates)))
    parts += _lists(status, narrow=width < WIDE)
    return parts


def _many(look: Mapping[str, Any], at: float) -> list[RenderableType]:
    from rich.text import Text

    told = entries(look, DAEMONS)
    away = [str(each.get("endpoint")) for each in told if "error" in each]
    parts: list[RenderableType] = [
        Text(f"{len(told)} daemons, {len(away)} unreachable; {utc(at)}", style="bold")
    ]
    for each in told:
        if error := part(each, "error"):
            said = f"Unreachable: {each.get('endpoint')}: {error.get('message')}"
            parts.append(Text(escaped(said), style="bold red"))
        elif entries(part(each, "status"), "alarms"):
            parts.append(Text(escaped(f"{each.get('endpoint')}:"), style="bold"))
            parts += _alarms(part(each, "status"))
    parts.append(table_of(DAEMON_HEADINGS, told_rows(told), "\n"))
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
    state = str(store.get("state", "unknown"))
    away = f", since {store.get('since')}" if state == "away" else ""
    return [
        ("rows", f"{rate_of(status):,.0f}/s  {sparks(rates)}"),
        ("bytes", f"{size(recent.get('bytes_per_s'))}/s"),
        ("queries", f"{recent.get('queries_per_s') or 0:.3g}/s, {shown(streams.get('open'))} open"),
        ("memory", f"{size(used)} of {size(limit)}  {'█' * full}{'░' * (BAR - full)}"),
        ("oldest unflushed row", span(status.get("oldest_unpersisted_s"))),
        (
            "flushes",
            f"{shown(work.get('queued_jobs'))} queued ({size(work.get('queued_bytes'))}),"
            f" {shown(work.get('active'))} active, {shown(work.get('failed_attempts'))} failed",
        ),
        ("log", f"{size(log.get('bytes'))}{free}{', DISK FULL' if disk.get('full') else ''}"),
        ("store", f"{STORE_WORDS.get(state, state)}{away}"),
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


def rate_of(status: Mapping[str, Any]) -> float:
    """Return the rows per second of the last ten seconds, summed over several daemons."""
    if DAEMONS in status:
        return sum(rate_of(part(each, "status")) for each in entries(status, DAEMONS))
    return float(part(part(status, "rates"), "last_10s").get("rows_per_s") or 0)


def sparks(values: deque[float]) -> str:
    """Draw values as blocks from zero to the highest, one character each."""
    top = max(values, default=0.0)
    if top <= 0:
        return SPARKS[0] * len(values)
    return "".join(SPARKS[min(7, int(8 * value / top))] for value in values)


def span(seconds: object) -> str:
    """Return a duration for people: ``12 s``, ``4.5 min``."""
    if not isinstance(seconds, int | float):
        return "-"
    for unit, length_s in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.1f} {unit}"
    return f"{seconds:.0f} s"


def utc(seconds: float) -> str:
    """Return a time as ``18:02:31 Z``."""
    return time.strftime("%H:%M:%S Z", time.gmtime(seconds))
