"""The source's current tables, and the next step for each of them.

    look ─▶ server, publication, tables ─▶ names, conditions, types ─▶ WantedTable, one per table

    state, facts ─▶ follow       unchanged
                    widen        a new column, null in all old rows: continue
                    ask          its rows are in a new file: TRUNCATE, or rewritten
                    copy         anything else: a new version of the table
                    set_aside    cannot be followed
                    leave        no longer published at the source

The stream contains changes of rows only. Everything else that changes a table's rows shows in the
catalog: an oid, a column's number, the file of the rows, the partitions. In doubt :func:`plan`
decides ``copy`` (``tests/postgres/test_planning.py``). A look changes only a publication of ours.
Its position in the log is read first, so all that the stream has up to there is older.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from ingester.postgres.catalog import read_publication, read_server, read_tables
from ingester.postgres.conditions import crashes_server
from ingester.postgres.facts import ColumnFacts, PublicationFacts, ServerFacts, TableFacts
from ingester.postgres.options import Names, Options, choose
from ingester.postgres.publication import PublicationChange, ensure, planned_hindrance
from ingester.postgres.server_errors import SourceFailed
from ingester.postgres.slot import current_lsn, kept_from
from ingester.postgres.states import KeptColumn, ReplicaState, SlotPlace
from ingester.postgres.types import column_type

Action = Literal["follow", "widen", "ask", "copy", "set_aside", "leave"]


class WantedTable(NamedTuple):
    """A table of the source, under its name here.

    Attributes:
        columns: The columns to keep; empty if it cannot be followed.
        hindrance: Why it cannot be followed; empty if it can.
    """

    target: str
    facts: TableFacts
    columns: tuple[KeptColumn, ...]
    hindrance: str = ""
    helps: tuple[str, ...] = ()


class TableStep(NamedTuple):
    """The next step for a table here, and the reason."""

    target: str
    action: Action
    reason: str = ""
    helps: tuple[str, ...] = ()


def plan(
    place: SlotPlace, have: Mapping[str, ReplicaState], wanted: Sequence[WantedTable]
) -> dict[str, TableStep]:
    """A step for each table that exists here or at the source.

    Args:
        place: The current slot.
        have: The states of the tables here, by name.
    """
    steps: dict[str, TableStep] = {}
    for table in wanted:
        steps[table.target] = _step(place, have.get(table.target), table)
    named = {table.facts.oid: table.target for table in wanted}
    for target, state in have.items():
        if target not in steps:
            reason = state.reason if state.phase == "left" else _gone(state, named)
            steps[target] = TableStep(target, "leave", reason)
    return steps


def _step(place: SlotPlace, state: ReplicaState | None, table: WantedTable) -> TableStep:
    if table.hindrance:
        return TableStep(table.target, "set_aside", table.hindrance, table.helps)
    if state is None:
        return TableStep(table.target, "copy", "it is a new table")
    if state.phase == "set_aside":
        return TableStep(table.target, "copy", f"it was set aside: {state.reason}")
    if state.phase == "left":
        return TableStep(table.target, "copy", "it is published again")
    if state.place != place:
        return TableStep(table.target, "copy", "the slot was created again")
    if (reason := _changed(state, table)) is not None:
        return TableStep(table.target, "copy", reason)
    if other_files(state.facts, table.facts):
        reason = "its rows were rewritten (ALTER TABLE, VACUUM FULL, CLUSTER)"
        return TableStep(table.target, "ask", reason)
    if state.facts != table.facts or state.columns != table.columns:
        return TableStep(table.target, "widen")
    return TableStep(table.target, "follow")


def other_files(old: TableFacts, new: TableFacts) -> set[int]:
    """The oids of the table and its partitions whose rows are in a new file."""
    before = {leaf.oid: leaf.filenode for leaf in old.leaves} | {old.oid: old.filenode}
    now = {leaf.oid: leaf.filenode for leaf in new.leaves} | {new.oid: new.filenode}
    return {oid for oid, file in now.items() if before.get(oid, file) != file}


def truncated_by(old: TableFacts, new: TableFacts, transactions: Collection[int]) -> bool:
    """Whether TRUNCATEs explain all new files.

    A TRUNCATE removes all rows, and the stream has those inserted since. It must be the last
    transaction that changed the catalog entry: a later one may have rewritten rows.

    Args:
        transactions: Those (32 bits) with a TRUNCATE of the table in the stream.
    """
    by = {leaf.oid: leaf.changed_by for leaf in new.leaves} | {new.oid: new.changed_by}
    return all(by[oid] in transactions for oid in other_files(old, new))


def _changed(state: ReplicaState, table: WantedTable) -> str | None:
    """The change that has no message in the stream, or None."""
    old, new = state.facts, table.facts
    if old.oid != new.oid:
        return f"{new.schema}.{new.name} is a different table now"
    if old.kind != new.kind:
        return "it changed between partitioned and ordinary"
    if old.key != new.key:
        return f"its key changed from ({', '.join(old.key)}) to ({', '.join(new.key)})"
    if old.published_by != new.published_by:
        return "its publication was altered; changes may be missing"
    return _columns_changed(state, table) or _partitions_changed(old, new)


def _columns_changed(state: ReplicaState, table: WantedTable) -> str | None:
    before = {each.number: each for each in state.facts.columns}
    now = {each.number: each for each in table.facts.columns}
    for number, column in before.items():
        if number not in now:
            return f"column {column.name!r} was dropped"
        if (why := _column_changed(column, now[number])) is not None:
            return why
    for number, column in now.items():
        if number not in before and column.has_missing:
            return f"column {column.name!r} was added with a default for existing rows"
        if number not in before and (column.enum_labels or column.fields):
            # Rows may have been read with labels or fields that were renamed since.
            return f"column {column.name!r} was added with a type that may have changed since"
    if len(now) > len(before) and other_files(state.facts, table.facts):
        return "a column was added and the rows rewritten"
    altered = any(now[n].altered_by != each.altered_by for n, each in before.items())
    if altered and other_files(state.facts, table.facts):
        return "a column was altered and the rows rewritten"
    kept, will = state.columns, {each.source: each for each in table.columns}
    for each in kept:
        other = will.get(each.source)
        if other != each:
            was = f"{each.name!r} {each.kind} ({each.policy})"
            shown = "nothing" if other is None else f"{other.name!r} {other.kind} ({other.policy})"
            return f"column {each.source!r} is kept as {was}, but should be {shown}"
    return None


def _column_changed(old: ColumnFacts, new: ColumnFacts) -> str | None:
    if old.name != new.name:
        return f"column {old.name!r} was renamed to {new.name!r}"
    if old.base_oid != new.base_oid:
        return f"column {old.name!r} has a new type: {new.type_name}"
    if old.generated != new.generated:
        return f"column {old.name!r} changed between generated and ordinary"
    if old.fields != new.fields:
        return f"the fields of the type of column {old.name!r} changed"
    labels = dict(new.enum_labels)
    for oid, label in old.enum_labels:
        if labels.get(oid, label) != label:
            return f"label {label!r} of column {old.name!r} was renamed to {labels[oid]!r}"
    return None


def _partitions_changed(old: TableFacts, new: TableFacts) -> str | None:
    before = {leaf.oid: leaf for leaf in old.leaves}
    for leaf in new.leaves:
        known = before.pop(leaf.oid, None)
        if known is None and leaf.created_by != leaf.attached_by:
            return "a partition was attached that may have rows"
        if known is not None and known.attached_by != leaf.attached_by:
            return "a partition was detached and attached again"
    return "a partition was detached or dropped" if before else None


def _gone(state: ReplicaState, named: Mapping[int, str]) -> str:
    facts = state.facts
    if facts.oid in named:
        return f"{facts.schema}.{facts.name} is now followed as {named[facts.oid]}"
    return f"{facts.schema}.{facts.name} is no longer published"


class SourceLook(NamedTuple):
    """The source at a position of its log.

    Attributes:
        kept_from: The position from which it keeps the log for the slot.
    """

    lsn: int
    kept_from: int | None
    server: ServerFacts
    publication: PublicationFacts
    tables: tuple[WantedTable, ...]
    unused: tuple[str, ...] = ()
    """Options that match nothing."""


def look(connection: Any, options: Options) -> SourceLook:
    """Read the source; first add missing tables to a publication of ours."""
    server = read_server(connection)
    publish(connection, options)
    lsn = current_lsn(connection)
    publication = read_publication(connection, options.publication)
    tables = read_tables(connection, options.publication, everything=True)
    wanted = wanted_of(tables, server, publication, options)
    kept = kept_from(connection, options.slot)
    return SourceLook(lsn, kept, server, publication, wanted, unused(tables, options))


def unused(tables: Sequence[TableFacts], options: Options) -> tuple[str, ...]:
    """Names in options that no table or column has."""
    known = {"*"}
    for table in tables:
        name = f"{table.schema}.{table.name}"
        known |= {name, *(f"{name}.{column.name}" for column in table.columns)}
    return (
        *(f"--rename {name}" for name in Names(options.renames).unused(tables)),
        *(f"--values {name}" for name in sorted(options.policies.keys() - known)),
    )


def publish(connection: Any, options: Options) -> PublicationChange:
    """Publish all wanted tables that can be followed, if the publication is ours.

    Raises:
        SourceFailed: the role may not, or the server would crash.
    """
    publication = read_publication(connection, options.publication)
    if (found := crashes_server(publication)) is not None:
        raise SourceFailed(found.reason, helps=found.helps)
    tables = read_tables(connection, options.publication, everything=True)
    return ensure(connection, options.publication, wanted_tables(tables, options))


def wanted_tables(tables: Sequence[TableFacts], options: Options) -> list[TableFacts]:
    """Tables that the options select; views and foreign tables only by name."""
    return choose(tables, options.tables)[0]


def wanted_of(
    tables: Sequence[TableFacts],
    server: ServerFacts,
    publication: PublicationFacts,
    options: Options,
) -> tuple[WantedTable, ...]:
    """The selected tables under their names here."""
    names = Names(options.renames)
    named = wanted_tables(tables, options)
    if not (publication.ours or options.tables):
        named = [table for table in named if table.published]
    clashes = names.clashes(named)
    found = []
    for table in named:
        target = names.table(table.schema, table.name)
        hindered = planned_hindrance(table, server, publication)
        if hindered is not None:
            found.append(WantedTable(target, table, (), hindered.reason, hindered.helps))
        elif not table.published:
            continue  # The next look adds it.
        elif table.oid in clashes:
            found.append(WantedTable(target, table, (), *clashes[table.oid]))
        else:
            found.append(WantedTable(target, table, kept_columns(table, names, options)))
    # Of two tables with one name, the followable one gets it.
    found.sort(key=lambda each: (not each.hindrance, each.facts.full_name))
    return tuple(found)


def kept_columns(table: TableFacts, names: Names, options: Options) -> tuple[KeptColumn, ...]:
    """How each published column is kept."""
    found = []
    for column in table.sent_columns:
        policy = options.policy(table.schema, table.name, column.name)
        kind = column_type(column.base_oid, column.base_modifier, policy)
        name = names.column(table.schema, table.name, column.name)
        found.append(KeptColumn(column.name, name, str(kind.arrow), policy))
    return tuple(found)
