"""``status``: asks one or several running daemons."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ingester.client import ClientError
from ingester.client.connection import Connection
from ingester.observability.alarms import WITHOUT_STORE

from .connecting import connect, connections
from .printing import print_json, print_table, shown, size
from .push_rows import HEADINGS, rows_of_pushes
from .replication_status import SUMMARY, reported, summary

ANSWERED_WITHIN_S = 10.0
DAEMON_HEADINGS = ["endpoint", "daemon", "state", "writes", "rows per s", "memory", "log", "alarms"]


def print_status(endpoint: str, as_json: bool) -> None:
    """Print the daemon's status; ``--json`` includes fields this version does not know."""
    with connect(endpoint) as client:
        status = client.status()
    if as_json:
        print_json(status)
        return
    identity, admission = part(status, "identity"), part(status, "admission")
    memory = part(admission, "memory")
    recent = part(part(status, "rates"), "last_10s")
    rate = float(recent.get("rows_per_s") or 0)
    work, log = part(status, "persist"), part(status, "log")
    states = part(status, "checkpoints")
    streams, cleaned = part(status, "streams"), part(status, "clean_up")
    facts = [
        *(
            (f"alarm: {each.get('severity')}", f"{each.get('runbook')}: {each.get('message')}")
            for each in entries(status, "alarms")
        ),
        ("daemon", f"{identity.get('ingester_id')} (epoch {identity.get('epoch')})"),
        ("state", f"{identity.get('state')}, up {shown(identity.get('uptime_s'))} s"),
        *(("drain", text) for text in _drain(part(status, "drain"))),
        *(("adoption", text) for text in _adoptions(entries(status, "adoptions"))),
        ("store", identity.get("store")),
        ("store state", _store(part(status, "store_state"))),
        ("security", _security(part(status, "security"))),
        ("writes", _writes(status)),
        ("memory", f"{size(memory.get('used_bytes'))} of {size(memory.get('limit_bytes'))}"),
        ("rows", f"{rate:,.0f} per second" if rate >= 100 else f"{rate:.3g} per second"),
        (
            "flushes",
            f"{shown(work.get('queued_jobs'))} queued, {shown(work.get('active'))} active",
        ),
        ("oldest unflushed row", _age(status.get("oldest_unpersisted_s"))),
        *_logs(status, log),
        *(("published", text) for text in _publishing(part(status, "publishing"))),
        *(("log level", text) for text in _levels(part(status, "log_levels"))),
        (
            "checkpoints",
            f"{shown(states.get('count'))}, {size(states.get('bytes'))};"
            f" {shown(states.get('pending'))} in the log only",
        ),
        (
            "query streams",
            f"{shown(streams.get('open'))} open, {shown(streams.get('stalled'))} stalled",
        ),
        *(("SQL", text) for text in _sql(part(status, "sql"))),
        (
            "garbage collection",
            f"{shown(cleaned.get('deleted_objects'))} objects deleted"
            f" ({size(cleaned.get('deleted_bytes'))}), {shown(cleaned.get('runs'))} runs,"
            f" {shown(cleaned.get('failed_runs'))} failed;"
            f" last {shown(cleaned.get('last_run_at'))}",
        ),
        *(("compaction", text) for text in _compaction(part(status, "compaction"))),
    ]
    print_table(["", ""], facts)
    _print_lists(status)


def _sql(told: Mapping[str, Any]) -> list[str]:
    """Return the numbers of SQL queries, if there was one."""
    if not told.get("started"):
        return []
    counts = ("done", "failed", "cancelled", "timed_out")
    ended = ", ".join(f"{shown(told.get(name))} {name.replace('_', ' ')}" for name in counts)
    return [
        f"{shown(told.get('running'))} running, {shown(told.get('waiting'))} waiting,"
        f" {shown(told.get('workers'))} workers; {ended}"
    ]


def _compaction(done: Mapping[str, Any]) -> list[str]:
    """Return what compaction has merged, if it has run."""
    if not done.get("last_run_at"):
        return []
    return [
        f"{shown(done.get('replaced_files'))} files ({size(done.get('replaced_bytes'))}) became"
        f" {shown(done.get('new_files'))}, {shown(done.get('runs'))} runs,"
        f" {shown(done.get('failed_runs'))} failed; last {shown(done.get('last_run_at'))}"
    ]


def _writes(status: Mapping[str, Any]) -> str:
    """Return whether writes are accepted."""
    admission = part(status, "admission")
    if not admission.get("accepts_writes"):
        reasons = entries(admission, "reasons")
        return f"refused: {'; '.join(str(r.get('message') or r.get('code')) for r in reasons)}"
    return WITHOUT_STORE if store_is_away(status) else "accepted"


def store_is_away(status: Mapping[str, Any]) -> bool:
    """Return whether the store is unreachable, so that only open tables accept writes."""
    return part(status, "store_state").get("state") == "away"


def _store(state: Mapping[str, Any]) -> str:
    """Return whether the store is reachable, and if not since when."""
    if state.get("state") != "away":
        answered = f", last answer {state['last_ok_at']}" if state.get("last_ok_at") else ""
        word = "reachable" if state.get("state") == "ok" else state.get("state", "unknown")
        return f"{word}{answered}"
    return f"unreachable since {shown(state.get('since'))}: {shown(state.get('last_error'))}"


def _disk(disk: Mapping[str, Any]) -> str:
    """Return the free space of the log's disk."""
    if disk.get("log_free_bytes") is None:
        return "unknown"
    room = f"{size(disk['log_free_bytes'])} free of {size(disk.get('log_total_bytes'))}"
    return f"full: {room}" if disk.get("full") else room


def _logs(status: Mapping[str, Any], log: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the lines of the log on disk, if there is one, and of the log in the store."""
    stored = part(status, "store_log")
    in_store = [("store log", text) for text in _store_log(stored)]
    if stored.get("disk") is False:
        return [("log", "only in the store"), *in_store]
    segments = f"{shown(log.get('segments'))} segments, {size(log.get('bytes'))}"
    return [("log", segments), ("log disk", _disk(part(status, "disk"))), *in_store]


def _store_log(told: Mapping[str, Any]) -> list[str]:
    """Return the log in the store, if a batch has asked for it, and what is lost with a disk."""
    found = []
    if told.get("ack") == "store" or told.get("state") not in (None, "unused"):
        puts, failed = told.get("puts") or 0, told.get("failed_puts")
        text = f"{told.get('state')}, {shown(puts)} PUTs, {size(told.get('put_bytes'))}"
        if puts:
            text += f", {float(told.get('put_s') or 0) / puts:.3g} s each"
        if told.get("oldest_waiting_s") is not None:
            text += f"; {size(told.get('waiting_bytes'))} waiting"
        if failed:
            text += f"; {shown(failed)} failed, last: {shown(told.get('last_error'))}"
        found.append(text)
    return found + [
        f"lost with a disk: about {shown(count := each.get('operations'))}"
        f" operation{'' if count == 1 else 's'} of {each.get('namespace')}/{each.get('table')}"
        f" (epoch {shown(each.get('epoch'))})"
        for each in entries(told, "lost")
    ]


def _age(seconds: object) -> str:
    return "none" if seconds is None else f"{shown(seconds)} s old"


def _drain(told: Mapping[str, Any]) -> list[str]:
    """Return the progress of a drain, if there is one."""
    if told.get("state") not in ("draining", "drained"):
        return []
    left = (
        f"since {told.get('since')}: {told.get('buffers')} buffers with"
        f" {size(told.get('bytes'))} unflushed, {told.get('tables')} tables claimed"
    )
    return [f"{left}; {told['problem']}" if told.get("problem") else left]


def _adoptions(told: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each data directory that the daemon watches."""
    return [
        f"{each.get('directory')}: {each.get('state')}"
        + (f", {shown(each.get('rows'))} rows adopted" if each.get("state") == "adopted" else "")
        + (f": {each['problem']}" if each.get("problem") else "")
        for each in told
    ]


def _levels(told: Mapping[str, Any]) -> list[str]:
    """Return a line for each level set at run time."""
    return [
        f"{each.get('level')} of {each.get('logger') or 'all'}, until"
        f" {each.get('until') or 'the next start'}"
        for each in entries(told, "set")
    ]


def _security(told: Mapping[str, Any]) -> str:
    words = [
        "TLS" if told.get("tls") else "no TLS",
        *(["client certificates"] if told.get("client_certificates") else []),
        "tokens" if told.get("tokens") else "no tokens",
    ]
    text = ", ".join(words)
    if told.get("insecure"):
        text += "; INSECURE: other machines reach " + " and ".join(map(str, told["exposed"]))
    certificate = part(told, "certificate")
    if certificate:
        text += f"; certificate until {shown(certificate.get('not_after'))}"
    if certificate.get("problem"):
        text += f"; the changed certificate cannot be loaded: {certificate['problem']}"
    return text


def _publishing(told: Mapping[str, Any]) -> list[str]:
    """Return how far publishing in open formats is, if any table is published."""
    if not told.get("tables"):
        return []
    text = f"{shown(told['tables'])} tables; {shown(told.get('stopped'))} stopped"
    if told.get("behind"):
        text += f", {shown(told['behind'])} behind, at most {shown(told.get('seconds_behind'))} s"
    return [text]


def _published(table: Mapping[str, Any]) -> str:
    """Return each format of a table with its newest version."""
    return "; ".join(
        f"{each.get('format')} {shown(each.get('number'))}{_hindered(each)}"
        for each in entries(table, "published")
    )


def _hindered(published: Mapping[str, Any]) -> str:
    if published.get("refused"):
        return ", stopped"
    return ", failing" if published.get("error") else ""


def _print_unpublished(status: Mapping[str, Any]) -> None:
    """Print why tables are not published as they should be."""
    reasons = [
        (f"{table.get('namespace')}/{table.get('table')}", each.get("format"), reason)
        for table in entries(status, "tables")
        for each in entries(table, "published")
        if (reason := each.get("refused") or each.get("error"))
    ]
    if reasons:
        print_table(["table", "format", "reason"], reasons, "\ntables that are not published")


def _print_lists(status: Mapping[str, Any]) -> None:
    publishes = any(entries(table, "published") for table in entries(status, "tables"))
    tables = [
        (
            table.get("namespace"),
            table.get("table"),
            table.get("manifest_version"),
            part(table, "buffered").get("rows"),
            part(table, "persisted").get("rows"),
            *([_published(table)] if publishes else []),
        )
        for table in entries(status, "tables")
    ]
    if tables:
        headings = ["namespace", "table", "version", "in buffer", "in files"]
        print_table([*headings, *(["published"] if publishes else [])], tables, "\ntables")
    _print_unpublished(status)
    followers = [
        (
            each.get("namespace"),
            each.get("table"),
            each.get("name"),
            "yes" if each.get("alive") else "no",
            f"v{shown(each.get('table_version'))}",
            [f"v{version}" for version in each.get("prepared") or []],
        )
        for each in entries(status, "followers")
    ]
    if followers:
        headings = ["namespace", "table", "follower", "alive", "serves", "prepared"]
        print_table(headings, followers, "\nfollowers")
    _print_namespaces(status)
    if replications := reported(status):
        print_table(SUMMARY, map(summary, replications), "\nreplications")
    _print_pushes(status)
    problems = [
        (p.get("at"), p.get("runbook"), p.get("event"), p.get("message"))
        for p in entries(status, "errors")
    ]
    if problems:
        print_table(["at", "runbook", "event", "problem"], problems, "\nlast errors")


def _print_namespaces(status: Mapping[str, Any]) -> None:
    rows = []
    for each in entries(status, "namespaces"):
        quota = part(each, "quota")
        limits = [f"{name} {most}" for name, most in quota.items() if most]
        share = "over its share" if each.get("over_share") else ""
        rows.append(
            (
                each.get("namespace"),
                size(each.get("bytes")),
                size(each.get("queued_bytes")),
                *(shown(each.get(name)) for name in ("partitions", "tables", "writers")),
                shown(each.get("answers")),
                shown(each.get("refused")),
                ", ".join(filter(None, [share, *limits])),
            )
        )
    if rows:
        headings = ["namespace", "memory", "queued", "partitions", "tables", "writers", "answers"]
        print_table([*headings, "refused", "quotas"], rows, "\nnamespaces")


def _print_pushes(status: Mapping[str, Any]) -> None:
    rows = rows_of_pushes(entries(status, "pushes"))
    if rows:
        print_table(HEADINGS, rows, "\npushes")
    reading = part(status, "push_reading")
    faults = [(bad.get("path"), bad.get("reason")) for bad in entries(reading, "unreadable")]
    if reading.get("failure"):
        faults.append((f"pushes since {shown(reading.get('read_at'))}", reading["failure"]))
    if faults:
        print_table(["not read", "reason"], faults, "\npushes that cannot be shown")


def part(whole: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return an object in an object; empty if an older daemon does not send it."""
    part = whole.get(name)
    return part if isinstance(part, dict) else {}


def entries(whole: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """Return a list in an object; empty if an older daemon does not send it."""
    part = whole.get(name)
    return part if isinstance(part, list) else []


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
    """Return a row below ``DAEMON_HEADINGS`` for each result of :func:`ask_all`."""
    return [_row(str(each.get("endpoint")), each) for each in told]


def _print_all(daemons: Sequence[Connection], as_json: bool) -> None:
    with ThreadPoolExecutor(min(32, len(daemons)), "status") as pool:
        found = [*pool.map(_asked, daemons)]
    if as_json:
        print_json([_told(*each) for each in zip(daemons, found, strict=True)])
    else:
        told = [_told(*each) for each in zip(daemons, found, strict=True)]
        print_table(DAEMON_HEADINGS, told_rows(told))
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
