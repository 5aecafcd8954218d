"""What is known of replications: by their replicators' reports, else by their tables' states.

Law of this file: pure. A report tells more and is newer; states are what is left where nobody
reports, after a restart of the daemon for one. What a daemon of another version leaves out is not
known, and what it says beyond this is passed over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ingester.postgres.states import BadState, Place, TableState, decode_state
from ingester.reports.replications import PHASES, plain

UNKNOWN = "unknown"
"""The phase of a table whose state cannot be read."""

Json = Mapping[str, Any]


class ReplicatedTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table of a replication; see :class:`ingester.reports.replications.TableReport`."""

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


class Replication(msgspec.Struct, frozen=True, kw_only=True):
    """A replication into a namespace.

    Attributes:
        known_by: ``report`` or ``states``.
        alive: Whether its replicator reports.
        heard_at: When it was heard last; of one that is known by states, when the newest was kept.
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
    """A state as the daemon keeps it: its table, its origin, what is in it, and since when."""

    table: str
    origin: str
    content: bytes
    at: str | None


def reported(status: Json) -> list[Replication]:
    """Return the replications that a daemon's status tells of; none if it is an older one's."""
    found = status.get("replications")
    return msgspec.convert(found if isinstance(found, list) else [], list[Replication])


def by_states(namespace: str, states: Iterable[KeptState]) -> list[Replication]:
    """Return the replications that states tell of, by origin."""
    origins: dict[str, list[KeptState]] = {}
    for each in states:
        origins.setdefault(each.origin, []).append(each)
    return [_by_states(namespace, origin, each) for origin, each in sorted(origins.items())]


def _by_states(namespace: str, origin: str, kept: Sequence[KeptState]) -> Replication:
    states = {each.table: _read(each.content) for each in kept}
    tables = [_table(name, state) for name, state in states.items()]
    places = [state.place for state in states.values() if isinstance(state, TableState)]
    counts = Counter(each.phase for each in tables)
    return Replication(
        namespace=namespace,
        origin=origin,
        known_by="states",
        heard_at=max((each.at for each in kept if each.at is not None), default=None),
        source=plain(_source(places[0])) if places else "a source that cannot be read",
        slot=plain(places[0].slot) if places else "",
        state="ended",
        phases={phase: counts[phase] for phase in (*PHASES, UNKNOWN)},
        tables=in_order(tables),
    )


def _source(place: Place) -> str:
    return f"database {place.database}, system {place.system_identifier}"


def _table(name: str, state: TableState | BadState) -> ReplicatedTable:
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
    """Return the tables by phase, those that do not follow first, and by name."""
    order: dict[str, int] = {phase: number for number, phase in enumerate(PHASES)}
    return tuple(sorted(tables, key=lambda each: (order.get(each.phase, -1), each.table)))


def _read(content: bytes) -> TableState | BadState:
    try:
        return decode_state(content)
    except BadState as exc:
        return exc
