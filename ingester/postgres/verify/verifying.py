"""Compares source and copy table by table: ``ingester replicate verify``.

    states at the daemon ─┬▶ each table: facts, columns ──▶ ``comparing`` ──▶ TableVerdict
    source's catalog ─────┘   ▲                                │
                              └── one of them has changed ◀────┘

It changes nothing and may run beside a replicator. The compared columns are those of the table's
state; a column that the source has added since must be null in all rows.

Each table is read in its own transaction. A single one for all tables would prove no more, as each
copy is read at another moment, and would hold back vacuum at the source.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ingester.client import Client, NotFound
from ingester.postgres.catalog import read_publication, read_server, read_tables
from ingester.postgres.conditions import hindrance
from ingester.postgres.connection import connect
from ingester.postgres.facts import ColumnFacts, TableFacts
from ingester.postgres.options import Names
from ingester.postgres.server_errors import SourceFailed
from ingester.postgres.states import PREFIX, ReplicaState, decode_state, partition_of
from ingester.postgres.verify.compared_texts import AskedColumn, NoText
from ingester.postgres.verify.comparing import Sides, TableComparison, compare
from ingester.postgres.verify.copy_rows import ComparedCopy, CopyPosition, SchemaChanged, report_of
from ingester.postgres.verify.differences import SHOWN_ROWS, TableVerdict, Verdict, row_difference
from ingester.postgres.verify.source_rows import ComparedSource, SourceColumn

_UNDEFINED = ("42P01", "42703", "3F000", "42704", "42883")
"""SQLSTATEs of a missing table or column."""
LOOK_AGAIN_S = 1.0
RESYNC = "run the replicator with --resync {}"


class ComparedColumn(NamedTuple):
    """A compared column, and its name here."""

    facts: ColumnFacts
    here: str
    nulls: bool


def compared_columns(state: ReplicaState, facts: TableFacts, names: Names) -> list[ComparedColumn]:
    """The compared columns, the key's first.

    Columns added at the source since the copy are included; those left out on purpose are not.
    """
    kept = {column.source: column for column in state.columns}
    old = {column.number for column in state.facts.columns}
    columns: list[ComparedColumn] = []
    for column in facts.columns:
        mine = kept.get(column.name)
        if mine is not None:
            columns.append(ComparedColumn(column, mine.name, mine.policy == "null"))
        elif column.number not in old and column.sent:
            here = names.column(facts.schema, facts.name, column.name)
            columns.append(ComparedColumn(column, here, False))
    by_name = {column.facts.name: column for column in columns}
    key = [by_name[name] for name in facts.key]
    return key + [column for column in columns if column not in key]


class VerifyPlan(NamedTuple):
    """The tables to compare.

    Attributes:
        origin: The replicator's origin; empty for the namespace's only one.
        tables: Names here; empty for all.
        patience_s: The longest wait for a copy that is behind, or for a replicator that has not
            noticed a change of a table.
    """

    dsn: str
    namespace: str
    origin: str
    names: Names
    tables: tuple[str, ...] = ()
    patience_s: float = 60.0


class NothingToCompare(Exception):
    """No table matches the request."""


def verify(
    plan: VerifyPlan, client: Client, progress: Callable[[str, int], None] = lambda what, rows: None
) -> list[TableVerdict]:
    """Compare an origin's tables in a namespace with their source.

    Args:
        progress: called with the current step and its rows so far.

    Raises:
        NothingToCompare: no table matches, or the tables come from another source.
        BadState: a state cannot be read.
    """
    connection = connect(plan.dsn)
    try:
        return _Verifying(plan, client, connection, progress).run()
    finally:
        connection.close()


class _Verifying:
    def __init__(
        self,
        plan: VerifyPlan,
        client: Client,
        connection: Any,
        progress: Callable[[str, int], None],
    ) -> None:
        self._plan = plan
        self._client = client
        self._connection = connection
        self._progress = progress
        self._origin = self._find_origin()
        self._states = self._read_states()
        self._check_source()

    def run(self) -> list[TableVerdict]:
        wanted = self._plan.tables
        names = [name for name in sorted(self._states) if not wanted or name in wanted]
        verdicts = [self._verdict(name) for name in names]
        verdicts += self._without_copy()
        if unknown := set(wanted) - {verdict.table for verdict in verdicts}:
            raise NothingToCompare(
                f"namespace {self._plan.namespace!r} has no table {min(unknown)!r} of origin"
                f" {self._origin!r}, and no published table would get that name"
            )
        return verdicts

    def _find_origin(self) -> str:
        """The given origin, or the namespace's only one."""
        namespace, origin = self._plan.namespace, self._plan.origin
        try:
            listed = self._client.checkpoints(namespace)
        except NotFound as exc:
            raise NothingToCompare(str(exc)) from exc
        found = {each.partition for each in listed if each.partition.startswith(PREFIX)}
        origins = sorted(each.removeprefix(PREFIX) for each in found)
        if origin in origins:
            return origin
        if not origin and len(origins) == 1:
            return origins[0]
        there = f"; set --origin to one of {', '.join(origins)}" if origins else ""
        which = f"of origin {origin!r}" if origin else "of ``replicate postgres``"
        if origin or not origins:
            raise NothingToCompare(f"namespace {namespace!r} has no table {which}{there}")
        raise NothingToCompare(
            f"namespace {namespace!r} has tables of several origins: set --origin to one of"
            f" {', '.join(origins)}"
        )

    def _read_states(self) -> dict[str, ReplicaState]:
        namespace, partition = self._plan.namespace, partition_of(self._origin)
        listed = self._client.checkpoints(namespace)
        states = {}
        for name in (each.table for each in listed if each.partition == partition):
            stored = self._client.checkpoint(namespace, name, partition)
            if stored.state is not None:
                states[name] = decode_state(stored.state)
        return states

    def _check_source(self) -> None:
        server = read_server(self._connection)
        for name, state in self._states.items():
            place = state.place
            theirs = (place.system_identifier, place.database)
            if theirs != (server.system_identifier, server.database):
                raise NothingToCompare(
                    f"table {name!r} was copied from database {theirs[1]!r} of system {theirs[0]};"
                    f" this is {server.database!r} of system {server.system_identifier}"
                )

    def _verdict(self, name: str) -> TableVerdict:
        """The verdict, once state and source agree about the table."""
        ends_at = time.monotonic() + self._plan.patience_s
        while True:
            position = CopyPosition(
                self._client,
                (self._plan.namespace, name),
                self._origin,
                self._connection,
            )
            before = position.state()
            verdict, settled = self._look(name, before, position)
            if settled and _same(before, position.state()):
                return verdict
            if time.monotonic() > ends_at:
                return verdict
            time.sleep(LOOK_AGAIN_S)

    def _look(
        self, name: str, state: ReplicaState | None, position: CopyPosition
    ) -> tuple[TableVerdict, bool]:
        """A verdict, and whether it is final; otherwise another look may differ."""
        if state is None:
            return TableVerdict(name, "", "differs", reason="the table does not exist here"), False
        source = state.facts.full_name
        if state.phase in ("set_aside", "left"):
            verdict: Verdict = "left" if state.phase == "left" else "set_aside"
            reason, helps = state.reason, state.helps
            return TableVerdict(name, source, verdict, reason=reason, helps=helps), True
        found = read_tables(self._connection, state.publication, [state.facts.oid])
        if not found:
            gone = "the source no longer has this table; its rows are still here"
            return TableVerdict(name, source, "differs", reason=gone), False
        [facts] = found
        if (misfit := self._misfit(name, state, facts)) is not None:
            return TableVerdict(name, facts.full_name, "differs", reason=misfit), False
        try:
            return self._compare(name, state, facts, position)
        except (SchemaChanged, NoText) as exc:
            return TableVerdict(name, facts.full_name, "differs", reason=str(exc)), False
        except SourceFailed as exc:
            if exc.sqlstate in _UNDEFINED:
                reason = f"the table changed while it was read: {exc}"
                return TableVerdict(name, facts.full_name, "changing", reason=reason), False
            return TableVerdict(
                name, facts.full_name, "failed", reason=str(exc), helps=exc.helps
            ), True

    def _misfit(self, name: str, state: ReplicaState, facts: TableFacts) -> str | None:
        """Why the table cannot be compared row by row."""
        if not facts.published:
            return f"publication {state.publication!r} no longer contains this table"
        new = self._plan.names.table(facts.schema, facts.name)
        if new != name and facts.full_name != state.facts.full_name:
            return f"the source's table was renamed to {facts.full_name}, which is {new!r} here"
        there = {column.name for column in facts.columns}
        for column in state.columns:
            if column.source not in there:
                return f"column {column.name!r} exists here, but was dropped at the source"
        if facts.key != state.facts.key:
            key, here = (", ".join(each.key) or "none" for each in (facts, state.facts))
            return f"the key is {key} at the source and {here} here"
        return None

    def _compare(
        self, name: str, state: ReplicaState, facts: TableFacts, position: CopyPosition
    ) -> tuple[TableVerdict, bool]:
        columns = compared_columns(state, facts, self._plan.names)
        here = (self._plan.namespace, name)
        copy = ComparedCopy(self._client, here, [column.here for column in columns], len(facts.key))
        asked = [
            AskedColumn(each.facts.name, each.facts.base_oid, copy.kept(each.here), each.nulls)
            for each in columns
        ]
        source = ComparedSource(
            self._connection,
            (facts.schema, facts.name, facts.kind),
            [
                SourceColumn(mine, each.facts.type_name)
                for mine, each in zip(asked, columns, strict=True)
            ],
            len(facts.key),
        )
        found = compare(
            Sides(source, copy, position),
            self._plan.patience_s,
            lambda what, rows: self._progress(f"{name}, {what}", rows),
        )
        # A table copied again meanwhile is another one.
        again = read_tables(self._connection, state.publication, [facts.oid])
        named = [(each.here, mine) for mine, each in zip(asked, columns, strict=True)]
        verdict = _verdict_of(name, facts, named, found)
        return verdict, again == [facts] or verdict.verdict == "equal"

    def _without_copy(self) -> Iterator[TableVerdict]:
        """Published tables without a copy."""
        names, wanted = self._plan.names, self._plan.tables
        server = read_server(self._connection)
        known = {state.facts.oid for state in self._states.values()}
        latest = report_of(self._client, self._plan.namespace, self._origin)
        reported = {} if latest is None else {each.table: each for each in latest.tables}
        for name in sorted({state.publication for state in self._states.values()}):
            publication = read_publication(self._connection, name)
            for facts in read_tables(self._connection, name):
                target = names.table(facts.schema, facts.name)
                if facts.oid in known or target in self._states:
                    continue
                if wanted and target not in wanted:
                    continue
                found = hindrance(facts, server, publication)
                report = reported.get(target)
                source = facts.full_name
                if found is not None:
                    yield TableVerdict(
                        target, source, "set_aside", reason=found.reason, helps=found.helps
                    )
                elif report is not None and report.phase == "set_aside":
                    yield TableVerdict(
                        target, source, "set_aside", reason=report.reason, helps=report.helps
                    )
                elif report is not None:
                    reason = f"it is {report.phase.replace('_', ' ')}: it has no copy here yet"
                    yield TableVerdict(target, source, "behind", reason=reason)
                else:
                    yield TableVerdict(target, source, "differs", reason="it has no copy here")


def _verdict_of(
    name: str, facts: TableFacts, columns: Sequence[tuple[str, AskedColumn]], found: TableComparison
) -> TableVerdict:
    """The verdict for a comparison's result."""
    verdict: Verdict = "equal"
    reason = ""
    if found.differing:
        verdict = "differs"
    elif found.behind:
        verdict = "behind"
        reason = "the copy did not reach the source's position: see ingester replicate status"
    elif found.changing:
        verdict, reason = "changing", "these rows changed too often to be compared"
    pairs = list(found.differing.items())[:SHOWN_ROWS]
    return TableVerdict(
        name,
        facts.full_name,
        verdict,
        found.source_rows,
        found.copy_rows,
        len(found.differing),
        found.more,
        found.changing + found.behind,
        tuple(row_difference(columns, key, pair.source, pair.copy) for key, pair in pairs),
        reason,
        (RESYNC.format(name),) if found.differing else (),
    )


def _same(before: ReplicaState | None, after: ReplicaState | None) -> bool:
    """Whether it is the same copy in the same phase."""
    if before is None or after is None:
        return before is after
    return (before.from_lsn, before.phase, before.facts, before.columns) == (
        after.from_lsn,
        after.phase,
        after.facts,
        after.columns,
    )
