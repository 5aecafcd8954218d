"""``status`` of several daemons: one line each, including unreachable ones."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ingester.client import ClientError
from ingester.client.connection import Connection

from .connecting import connections
from .printing import print_json, print_table, shown, size
from .status import entries, part, print_status, store_is_away

ANSWERED_WITHIN_S = 10.0
HEADINGS = ["endpoint", "daemon", "state", "writes", "rows per s", "memory", "log", "alarms"]


def print_status_of_each(endpoint: str, as_json: bool) -> None:
    """Print the status of a daemon; of several one line each, or with ``--json`` a list.

    Raises:
        ClientError: the error of the first daemon that did not answer, after all are printed.
    """
    daemons = connections(endpoint, ANSWERED_WITHIN_S)
    if len(daemons) > 1:
        _print_all(daemons, as_json)
    else:
        print_status(endpoint, as_json)


def ask_all(daemons: Sequence[Connection]) -> list[dict[str, Any]]:
    """Return each daemon's ``endpoint``, and its ``status`` or an ``error``."""
    with ThreadPoolExecutor(min(32, len(daemons)), "status") as pool:
        found = pool.map(_asked, daemons)
        return [_told(*each) for each in zip(daemons, found, strict=True)]


def told_rows(told: Sequence[Mapping[str, Any]]) -> list[tuple[object, ...]]:
    """Return a row below ``HEADINGS`` for each result of :func:`ask_all`."""
    return [_row(str(each.get("endpoint")), each) for each in told]


def _print_all(daemons: Sequence[Connection], as_json: bool) -> None:
    with ThreadPoolExecutor(min(32, len(daemons)), "status") as pool:
        found = [*pool.map(_asked, daemons)]
    if as_json:
        print_json([_told(*each) for each in zip(daemons, found, strict=True)])
    else:
        told = [_told(*each) for each in zip(daemons, found, strict=True)]
        print_table(HEADINGS, told_rows(told))
    for each in found:
        if isinstance(each, ClientError):
            raise each


def _asked(daemon: Connection) -> Mapping[str, Any] | ClientError:
    try:
        return daemon.act("status", {}, ANSWERED_WITHIN_S, once=True)[0]
    except ClientError as exc:
        return exc


def _told(daemon: Connection, found: Mapping[str, Any] | ClientError) -> dict[str, Any]:
    if isinstance(found, ClientError):
        return {"endpoint": daemon.endpoint, "error": {"code": found.code, "message": str(found)}}
    return {"endpoint": daemon.endpoint, "status": found}


def _row(endpoint: str, told: Mapping[str, Any]) -> tuple[object, ...]:
    if "error" in told:
        return (endpoint, "", f"no answer: {part(told, 'error').get('code')}", *[""] * 5)
    found = part(told, "status")
    identity, admission = part(found, "identity"), part(found, "admission")
    reasons = [str(each.get("code")) for each in entries(admission, "reasons")]
    taken = "open tables only" if store_is_away(found) else "accepted"
    recent = part(part(found, "rates"), "last_10s")
    return (
        endpoint,
        f"{shown(identity.get('ingester_id'))} (epoch {shown(identity.get('epoch'))})",
        identity.get("state"),
        taken if admission.get("accepts_writes") else f"refused: {', '.join(reasons)}",
        f"{float(recent.get('rows_per_s') or 0):,.0f}",
        size(part(admission, "memory").get("used_bytes")),
        size(part(found, "log").get("bytes")),
        [str(each.get("name")) for each in entries(found, "alarms")],
    )
