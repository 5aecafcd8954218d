"""Pushes as rows of a table for people, from what a daemon says of them.

Law of this file: pure. What a daemon of another version leaves out is a dash.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

HEADINGS = ("push", "table", "region", "status", "since", "version", "waits for, or why")
ENDED = 3
"""So many pushes that have ended are shown, the newest ones."""

Json = Mapping[str, Any]
Row = tuple[object, ...]


def rows_of_pushes(pushes: Sequence[Json]) -> list[Row]:
    """Return the rows of all pushes that are under way, and of the newest that have ended.

    A push has a row for itself, and while it is under way one for each region.
    """
    under_way = [push for push in pushes if not push.get("ended_at")]
    ended = [push for push in pushes if push.get("ended_at")]
    return [row for push in (*under_way, *ended[:ENDED]) for row in _rows(push)]


def rows_of_push(push: Json) -> list[Row]:
    """Return the rows of one push: of itself, and of each region, also where it has ended."""
    return list(_rows(push, always=True))


def _rows(push: Json, always: bool = False) -> Iterator[Row]:
    table = f"{push.get('namespace')}.{push.get('table')}"
    since, version = _time(push.get("since")), None
    yield push.get("push_id"), table, "", push.get("status"), since, version, _why(push)
    if push.get("ended_at") and not always:
        return
    for region in push.get("regions") or ():
        said = "; ".join(part for part in (_waits(region), region.get("reason")) if part)
        since = _time(region.get("since"))
        yield "", "", region.get("name"), region.get("status"), since, _version(region), said


def _why(push: Json) -> str:
    ending = push.get("ending")
    parts = [f"{ending.get('kind')}: {ending.get('reason')}" if ending else "", _waits(push)]
    if not push.get("ended_at") and push.get("led") is False:
        parts.insert(0, f"nobody leads it: last told of {push.get('told_s', 0):,.0f} s ago")
    return "; ".join(part for part in parts if part)


def _waits(of: Json) -> str:
    """Return what a push, or a region of it, waits for."""
    parts = []
    if of.get("unreachable_since"):
        parts.append(f"not reached since {_time(of['unreachable_since'])}")
    if of.get("lagging"):
        parts.append(f"followers: {', '.join(of['lagging'])}")
    step = of.get("step")
    if step:
        hooks = [": ".join(filter(None, (w["hook"], w.get("reason")))) for w in step["waits"]]
        parts.append(" ".join([step["method"], f"waits ({'; '.join(hooks)})" if hooks else ""]))
    return "; ".join(part.strip() for part in parts)


def _version(region: Json) -> str | None:
    made, before = region.get("table_version"), region.get("previous")
    if made is None:
        return None
    return f"v{made}" if before is None else f"v{made} (before: v{before})"


def _time(at: object) -> str | None:
    """Return a time to the second, as it is in the daemon's answer: in UTC."""
    return None if at is None else str(at)[:19].replace("T", " ") + " Z"
