"""``ingester replicate status``: replications into a namespace, from reports or from states.

A report is newer and more detailed. States are used where no replicator reports, for example
after a restart of the daemon. Fields that a daemon of another version omits or adds are ignored.
Tables that do not follow are shown first and in full.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import msgspec

from ingester.client import Client, ListedCheckpoint, NotFound
from ingester.postgres.states import PREFIX, BadState, ReplicaState, SlotPlace, decode_state
from ingester.reports.replications import PHASES, plain

from .connecting import connect
from .exits import FAILED, CommandFailed
from .printing import Lines, print_json, print_line, print_table, size

UNKNOWN = "unknown"
"""The phase of a table whose state cannot be read."""

Json = Mapping[str, Any]
SUMMARY = ("namespace", "source", "origin", "replicator", "lag", "tables", "last heard")
TABLES = ("table", "source", "phase", "since", "lag", "reason, and what to do")
FOLLOWING_SHOWN = 20


class ReplicatedTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table, decoded leniently; see :class:`ingester.reports.replications.TableReport`."""

    table: str
    source: str = ""
    phase: str = ""
    reason: str = ""
    since: str = ""
    helps: tuple[str, ...] = ()
    rows_done: int | None = None
    rows_total: int | None = None
    bytes_done: int | None = None
    lag_bytes: int | None = None
    lag_s: float | None = None
    rows: int | None = None
    notes: tuple[str, ...] = ()


class ShownReplication(msgspec.Struct, frozen=True, kw_only=True):
    """A replication into a namespace.

    Attributes:
        known_by: ``report`` or ``states``.
        alive: Whether its replicator reports.
        heard_at: The time of the last report, or of the newest state.
    """

    namespace: str
    origin: str
    known_by: str = "report"
    alive: bool = False
    heard_at: str | None = None
    heard_s: float | None = None
    source: str = ""
    slot: str = ""
    state: str = "running"
    reason: str = ""
    position: str | None = None
    lag_bytes: int | None = None
    lag_s: float | None = None
    slot_bytes: int | None = None
    retries: int = 0
    rivals: int = 0
    phases: dict[str, int] = {}
    tables: tuple[ReplicatedTable, ...] = ()
    left_out: dict[str, int] = {}

    @property
    def is_well(self) -> bool:
        """Whether a replicator reports, and no table is set aside."""
        return self.alive and not self.phases.get("set_aside")


class KeptState(NamedTuple):
    """A table's stored state, its origin and its time."""

    table: str
    origin: str
    content: bytes
    at: str | None


def reported(status: Json) -> list[ShownReplication]:
    """The replications in a daemon's status; empty for an older daemon."""
    found = status.get("replications")
    return msgspec.convert(found if isinstance(found, list) else [], list[ShownReplication])


def by_states(namespace: str, states: Iterable[KeptState]) -> list[ShownReplication]:
    """The replications that stored states describe, by origin."""
    origins: dict[str, list[KeptState]] = {}
    for each in states:
        origins.setdefault(each.origin, []).append(each)
    return [_by_states(namespace, origin, each) for origin, each in sorted(origins.items())]


def _by_states(namespace: str, origin: str, kept: Sequence[KeptState]) -> ShownReplication:
    states = {each.table: _read(each.content) for each in kept}
    tables = [_table(name, state) for name, state in states.items()]
    places = [state.place for state in states.values() if isinstance(state, ReplicaState)]
    counts = Counter(each.phase for each in tables)
    return ShownReplication(
        namespace=namespace,
        origin=origin,
        known_by="states",
        heard_at=max((each.at for each in kept if each.at is not None), default=None),
        source=plain(_source(places[0])) if places else "an unreadable state",
        slot=plain(places[0].slot) if places else "",
        state="ended",
        phases={phase: counts[phase] for phase in (*PHASES, UNKNOWN)},
        tables=in_order(tables),
    )


def _source(place: SlotPlace) -> str:
    return f"database {place.database}, system {place.system_identifier}"


def _table(name: str, state: ReplicaState | BadState) -> ReplicatedTable:
    if isinstance(state, BadState):
        return ReplicatedTable(table=plain(name), phase=UNKNOWN, reason=plain(str(state)))
    return ReplicatedTable(
        table=plain(name),
        source=plain(state.facts.full_name),
        phase=state.phase,
        reason=plain(state.reason),
        since=plain(state.since),
        helps=tuple(plain(each) for each in state.helps),
    )


def in_order(tables: Iterable[ReplicatedTable]) -> tuple[ReplicatedTable, ...]:
    """Tables by phase, those that follow last, and by name."""
    order: dict[str, int] = {phase: number for number, phase in enumerate(PHASES)}
    return tuple(sorted(tables, key=lambda each: (order.get(each.phase, -1), each.table)))


def _read(content: bytes) -> ReplicaState | BadState:
    try:
        return decode_state(content)
    except BadState as exc:
        return exc


Row = tuple[object, ...]


def summary(of: ShownReplication) -> Row:
    """A replication's row in a list of several."""
    heard = None if of.heard_s is None else f"{of.heard_s:,.0f} s ago"
    lag = _lag(of.lag_s, of.lag_bytes)
    return of.namespace, of.source, of.origin, _replicator(of), lag, phases(of.phases), heard


def lines(of: ShownReplication) -> Iterator[str]:
    """The lines about a replication above its tables."""
    yield f"{of.namespace} from {of.source}: {_replicator(of)}"
    yield f"  origin {of.origin}, slot {of.slot or '-'}; durable here up to {of.position or '-'}"
    if of.known_by == "states":
        yield (f"  no replicator reports; the newest state of a table is from {of.heard_at or '-'}")
    elif not of.alive:
        ago = f"{of.heard_s or 0:,.0f} s ago"
        yield f"  last heard {of.heard_at} ({ago}); showing its last report"
    else:
        kept = "" if of.slot_bytes is None else f"; the source keeps {size(of.slot_bytes)} of log"
        lag, ago = _lag(of.lag_s, of.lag_bytes), f"{of.heard_s or 0:,.0f} s ago"
        yield f"  lag {lag} (heard {ago}){kept}"
    if of.reason:
        retries = f" ({of.retries:,} failed sessions)" if of.retries else ""
        yield f"  {of.state.replace('_', ' ')}: {of.reason}{retries}"
    if of.rivals:
        yield f"  {of.rivals + 1} replicators report this origin: stop all but one"
    yield f"  tables: {phases(of.phases)}"


def rows(of: ShownReplication) -> list[Row]:
    """The rows of its tables, and one that counts the others."""
    others = [each for each in of.tables if each.phase != "following"]
    following = [each for each in of.tables if each.phase == "following"]
    shown = [*others, *following[:FOLLOWING_SHOWN]]
    left = dict(of.left_out)
    if len(following) > FOLLOWING_SHOWN:
        left["following"] = left.get("following", 0) + len(following) - FOLLOWING_SHOWN
    found = [_row(each) for each in shown]
    if any(left.values()):
        found.append((f"and {phases(left)}", "", "", "", "", ""))
    return found


def phases(counts: Mapping[str, int]) -> str:
    """The number of tables in each phase, as ``1 set aside, 40 following``."""
    shown = (f"{count:,} {phase.replace('_', ' ')}" for phase, count in counts.items() if count)
    return ", ".join(shown) or "none"


def _row(table: ReplicatedTable) -> Row:
    helps, notes = (f"to do: {each}" for each in table.helps), (f"note: {n}" for n in table.notes)
    why = [part for part in (table.reason, *helps, *notes) if part]
    phase = table.phase.replace("_", " ") + _progress(table)
    lag = _lag(table.lag_s, table.lag_bytes)
    return table.table, table.source, phase, table.since or "-", lag, Lines(why or ["-"])


def _progress(table: ReplicatedTable) -> str:
    if table.rows_done is None or table.phase != "copying":
        return ""
    whole = f" of about {table.rows_total:,}" if table.rows_total else ""
    read = f", {size(table.bytes_done)}" if table.bytes_done is not None else ""
    return f": {table.rows_done:,}{whole} rows{read}"


def _lag(seconds: float | None, nbytes: int | None) -> str:
    parts = ["" if seconds is None else f"{seconds:,.1f} s", "" if nbytes is None else size(nbytes)]
    return ", ".join(part for part in parts if part) or "-"


def _replicator(of: ShownReplication) -> str:
    if of.alive:
        return of.state.replace("_", " ")
    if of.known_by == "states":
        return "not running"
    return "ended" if of.state == "ended" else "not heard of"


def print_replications(
    endpoint: str, namespace: str, origin: str | None, as_json: bool
) -> NoReturn:
    """Print each replication into the namespace with its tables, and exit.

    Raises:
        SystemExit: 1 if a table is set aside or no replicator reports, else 0.
        CommandFailed: no replication into the namespace.
        ClientError
    """
    with connect(endpoint) as client:
        listed = client.status_list("replications")
        found = [
            each
            for each in reported({"replications": listed})
            if each.namespace == namespace and origin in (None, each.origin)
        ]
        reporting = {each.origin for each in found}
        states = _states(client, namespace, origin, reporting)
    found += by_states(namespace, states)
    if not found:
        which = "" if origin is None else f" as origin {origin!r}"
        raise CommandFailed(
            f"no replication into namespace {namespace!r}{which}: no replicator reports, and no"
            " table has a state of one"
        )
    if as_json:
        print_json({"replications": found})
    else:
        for number, each in enumerate(found):
            if number:
                print_line("")
            _print(each)
    raise SystemExit(0 if all(each.is_well for each in found) else FAILED)


def _states(
    client: Client, namespace: str, origin: str | None, reporting: set[str]
) -> list[KeptState]:
    """The states of the namespace's tables, except for origins with a report."""
    try:
        listed = client.checkpoints(namespace)
    except NotFound:
        return []
    found = []
    for each in listed:
        name = each.partition.removeprefix(PREFIX)
        if name == each.partition or name in reporting or origin not in (None, name):
            continue
        if (state := _state(client, each)) is not None:
            at = None if each.at is None else each.at.isoformat(timespec="seconds")
            found.append(KeptState(each.table, name, state, at))
    return found


def _state(client: Client, of: ListedCheckpoint) -> bytes | None:
    try:
        return client.checkpoint(of.namespace, of.table, of.partition).state
    except NotFound:
        return None  # dropped since the listing


def _print(replication: ShownReplication) -> None:
    for line in lines(replication):
        print_line(line)
    if found := rows(replication):
        print_table(TABLES, found)
