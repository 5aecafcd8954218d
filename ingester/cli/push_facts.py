"""What the commands tell of a push: as JSON, in the words of `/api/status`, and as tables.

push_id … regions, events     as in ``ingester.reports.pushes``
led, led_by, told_s           whether somebody leads it, who did last, and how long ago
requests                      what was asked for it, and which of that was taken in
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from ingester.pushes.driver import utc_now
from ingester.pushes.leading import HEARTBEAT, Lead
from ingester.pushes.push_status import push_status
from ingester.pushes.push_store import Request, Saved
from ingester.pushes.record import PushRecord
from ingester.reports.pushes import (
    KeptIn,
    Leader,
)

LIST_HEADINGS = ("push", "table", "status", "since", "began", "regions", "led by")
Facts = dict[str, Any]


def push_facts(
    saved: Saved, requests: Sequence[Request], lead: Lead | None, kept_in: KeptIn, events: int
) -> Facts:
    """Return the facts of a push, with so many of its newest events."""
    record = saved.record
    status = push_status(record, kept_in, Leader(controller=saved.controller, at=saved.at))
    facts: Facts = msgspec.to_builtins(status, enc_hook=str)
    facts["events"] = [
        msgspec.to_builtins(event) for event in record.history[len(record.history) - events :]
    ]
    facts["params"] = dict(record.params)
    facts["led"] = lead is not None and lead.age <= HEARTBEAT.gone_after
    facts["led_by"] = None if lead is None else lead.controller
    told = utc_now() - saved.at if lead is None else lead.age
    facts["told_s"] = round(told.total_seconds(), 3)
    facts["requests"] = [
        {
            "kind": each.kind,
            "reason": each.reason,
            "at": each.at.isoformat(),
            "taken_in": number <= record.requests,
        }
        for number, each in enumerate(requests, 1)
    ]
    return facts


def list_row(facts: Mapping[str, Any]) -> tuple[object, ...]:
    """Return a push as a row under ``LIST_HEADINGS``."""
    regions = [f"{region['name']} {region['status']}" for region in facts["regions"]]
    led_by = facts["led_by"] if facts["led"] else None
    if not facts["led"] and not facts["ended_at"]:
        led_by = "nobody"
    return (
        facts["push_id"],
        f"{facts['namespace']}.{facts['table']}",
        facts["status"],
        time_text(facts["since"]),
        time_text(facts["began_at"]),
        regions,
        led_by,
    )


def event_rows(facts: Mapping[str, Any]) -> list[tuple[object, ...]]:
    """Return the events as rows: time, region, what."""
    return [(time_text(e["at"]), e["region"] or "", e["what"]) for e in facts["events"]]


def request_rows(facts: Mapping[str, Any]) -> list[tuple[object, ...]]:
    """Return the requests as rows: number, kind, reason, time, and whether it was taken in."""
    return [
        (number, e["kind"], e["reason"], time_text(e["at"]), e["taken_in"])
        for number, e in enumerate(facts["requests"], 1)
    ]


def event_line(at: datetime, region: str | None, what: str) -> str:
    """Return an event as one line."""
    where = f"region {region}: " if region else ""
    return f"{time_text(at.isoformat())} {where}{what}"


def time_text(at: str) -> str:
    """Return a time to the second, in UTC."""
    return f"{at[:19].replace('T', ' ')} Z"


def end_text(record: PushRecord) -> str:
    """Return in one line where the push has come to."""
    regions = ", ".join(f"{each.name} {each.status.value}" for each in record.regions)
    why = f": {record.ending.kind}: {record.ending.reason}" if record.ending is not None else ""
    ended = "has ended" if record.over else "stands at"
    return f"push {record.push_id} {ended} {record.status.value} ({regions}){why}"
