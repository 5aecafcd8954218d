"""Pushes as rows of tables, from a daemon's status or the facts of ``ingester pushes``.

Keys that a daemon of another version does not send are shown as a dash.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

HEADINGS = ("push", "table", "region", "status", "since", "generation", "waits for, or reason")
LIST_HEADINGS = ("push", "table", "status", "since", "began", "regions", "led by")
ENDED = 3
"""The number of finished pushes in a table, the newest ones."""

Json = Mapping[str, Any]
Row = tuple[object, ...]


def rows_of_pushes(pushes: Sequence[Json]) -> list[Row]:
    """Return the rows of all unfinished pushes and of the newest finished ones.

    A push has one row, and while unfinished one more for each region.
    """
    unfinished = [push for push in pushes if not push.get("ended_at")]
    ended = [push for push in pushes if push.get("ended_at")]
    return [row for push in (*unfinished, *ended[:ENDED]) for row in _rows(push)]


def rows_of_push(push: Json) -> list[Row]:
    """Return the rows of one push and each of its regions."""
    return list(_rows(push, always=True))


def _rows(push: Json, always: bool = False) -> Iterator[Row]:
    table = f"{push.get('namespace')}.{push.get('table')}"
    since, generation = _time(push.get("since")), None
    yield push.get("push_id"), table, "", push.get("status"), since, generation, _why(push)
    if push.get("ended_at") and not always:
        return
    for region in push.get("regions") or ():
        said = "; ".join(part for part in (_waits(region), region.get("reason")) if part)
        since = _time(region.get("since"))
        yield "", "", region.get("name"), region.get("status"), since, _generation(region), said


def _why(push: Json) -> str:
    ending = push.get("ending")
    parts = [f"{ending.get('kind')}: {ending.get('reason')}" if ending else "", _waits(push)]
    if push.get("deferred") and not ending:
        parts.append("deferred until `ingester pushes release`")
    if not push.get("ended_at") and push.get("led") is False:
        parts.insert(0, f"no leader: last heartbeat {push.get('told_s', 0):,.0f} s ago")
    return "; ".join(part for part in parts if part)


def _waits(of: Json) -> str:
    """The condition that a push, or one of its regions, waits for."""
    parts = []
    if of.get("unreachable_since"):
        parts.append(f"unreachable since {_time(of['unreachable_since'])}")
    if of.get("lagging"):
        parts.append(f"followers: {', '.join(of['lagging'])}")
    step = of.get("step")
    if step:
        hooks = [": ".join(filter(None, (w["hook"], w.get("reason")))) for w in step["waits"]]
        parts.append(" ".join([step["method"], f"waits ({'; '.join(hooks)})" if hooks else ""]))
    return "; ".join(part.strip() for part in parts)


def _generation(region: Json) -> str | None:
    made, before = region.get("table_version"), region.get("previous")
    if made is None:
        return None
    return f"v{made}" if before is None else f"v{made} (before: v{before})"


def _time(at: object) -> str | None:
    """A time to the second, in UTC as the daemon sends it."""
    return None if at is None else str(at)[:19].replace("T", " ") + " Z"


def list_row(push: Json) -> Row:
    """Return a push as a row under ``LIST_HEADINGS``."""
    led_by = push["led_by"] if push["led"] else None
    if not push["led"] and not push["ended_at"]:
        led_by = "nobody"
    return (
        push["push_id"],
        f"{push['namespace']}.{push['table']}",
        push["status"],
        _time(push["since"]),
        _time(push["began_at"]),
        [f"{region['name']} {region['status']}" for region in push["regions"]],
        led_by,
    )


def tables_of_push(push: Json) -> list[tuple[Sequence[str], Sequence[Row], str]]:
    """Return the tables of one push, each as headings, rows and title."""
    tables: list[tuple[Sequence[str], Sequence[Row], str]] = [(HEADINGS, rows_of_push(push), "")]
    if push["requests"]:
        rows = [
            (number, each["kind"], each["reason"], _time(each["at"]), each["taken_in"])
            for number, each in enumerate(push["requests"], 1)
        ]
        headings = ("request", "for", "reason", "at", "processed")
        tables.append((headings, rows, "\nrequests"))
    if push["events"]:
        events = [(_time(e["at"]), e["region"] or "", e["what"]) for e in push["events"]]
        tables.append((("at", "region", "what"), events, "\nevents"))
    return tables


def event_line(at: str, region: str | None, what: str) -> str:
    """Return an event as one line; ``at`` is an ISO time."""
    where = f"region {region}: " if region else ""
    return f"{_time(at)} {where}{what}"
