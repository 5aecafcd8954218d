"""What is to be done with each table: what the source has now beside what is here.

    state, facts ─▶ follow       nothing has happened
                    widen        a column more, null in all old rows: go on
                    ask          the file of its rows is another: TRUNCATE, or written anew
                    copy         anything else: a new version of the table
                    set_aside    it cannot be followed
                    leave        the source has no such table any more

Law of this file: pure. Rows alone come by the stream; whatever changes what is there without a
row's message is told by the catalogue: an oid, a column's number, the file of the rows, the
partitions. In doubt the answer is ``copy``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple

from ingester.postgres.facts import ColumnFacts, TableFacts
from ingester.postgres.states import KeptColumn, Place, TableState

Action = Literal["follow", "widen", "ask", "copy", "set_aside", "leave"]


class Wanted(NamedTuple):
    """A table of the source as it is now, under its name here.

    Attributes:
        columns: As they would be kept; none where it cannot be followed.
        hindrance: Why it cannot be followed; empty where it can.
    """

    target: str
    facts: TableFacts
    columns: tuple[KeptColumn, ...]
    hindrance: str = ""
    helps: tuple[str, ...] = ()


class Step(NamedTuple):
    """What is to be done with a table here, and why."""

    target: str
    action: Action
    reason: str = ""
    helps: tuple[str, ...] = ()


def plan(place: Place, have: Mapping[str, TableState], wanted: Sequence[Wanted]) -> dict[str, Step]:
    """Return a step for each table that is here, or that the source has.

    Args:
        place: The slot as it is now.
        have: The states of the tables here, by name.
    """
    steps: dict[str, Step] = {}
    for table in wanted:
        steps[table.target] = _step(place, have.get(table.target), table)
    named = {table.facts.oid: table.target for table in wanted}
    for target, state in have.items():
        if target not in steps:
            reason = state.reason if state.phase == "left" else _gone(state, named)
            steps[target] = Step(target, "leave", reason)
    return steps


def _step(place: Place, state: TableState | None, table: Wanted) -> Step:
    if table.hindrance:
        return Step(table.target, "set_aside", table.hindrance, table.helps)
    if state is None:
        return Step(table.target, "copy", "it is new")
    if state.phase == "set_aside":
        return Step(table.target, "copy", f"it was set aside: {state.reason}")
    if state.phase == "left":
        return Step(table.target, "copy", "it has come back")
    if state.place != place:
        return Step(table.target, "copy", "the slot was made anew")
    if (reason := _changed(state, table)) is not None:
        return Step(table.target, "copy", reason)
    if other_files(state.facts, table.facts):
        reason = "its rows were written anew (ALTER TABLE, VACUUM FULL, CLUSTER)"
        return Step(table.target, "ask", reason)
    if state.facts != table.facts or state.columns != table.columns:
        return Step(table.target, "widen")
    return Step(table.target, "follow")


def other_files(old: TableFacts, new: TableFacts) -> set[int]:
    """Return the oids of the table and its partitions whose rows are in another file now."""
    before = {leaf.oid: leaf.filenode for leaf in old.leaves} | {old.oid: old.filenode}
    now = {leaf.oid: leaf.filenode for leaf in new.leaves} | {new.oid: new.filenode}
    return {oid for oid, file in now.items() if before.get(oid, file) != file}


def truncated_by(old: TableFacts, new: TableFacts, transactions: Collection[int]) -> bool:
    """Return whether all rows that are in another file now were put there after a TRUNCATE.

    Whatever was done before it, the TRUNCATE took the rows out and the stream has those since. It
    was the last to change the entry in the catalogue: what came after it may have written anew.

    Args:
        transactions: Those (32 bits) of which the stream has told a TRUNCATE of the table.
    """
    by = {leaf.oid: leaf.changed_by for leaf in new.leaves} | {new.oid: new.changed_by}
    return all(by[oid] in transactions for oid in other_files(old, new))


def _changed(state: TableState, table: Wanted) -> str | None:
    """Return what has changed that no message of a row has told; None where nothing has."""
    old, new = state.facts, table.facts
    if old.oid != new.oid:
        return f"{new.schema}.{new.name} is another table than before"
    if old.kind != new.kind:
        return "it was partitioned, and is not any more, or the other way round"
    if old.key != new.key:
        return f"its key was ({', '.join(old.key)}) and is ({', '.join(new.key)})"
    if old.published_by != new.published_by:
        return "the publication has got it anew, and may have left out changes"
    return _columns_changed(state, table) or _partitions_changed(old, new)


def _columns_changed(state: TableState, table: Wanted) -> str | None:
    before = {each.number: each for each in state.facts.columns}
    now = {each.number: each for each in table.facts.columns}
    for number, column in before.items():
        if number not in now:
            return f"column {column.name!r} is gone"
        if (why := _column_changed(column, now[number])) is not None:
            return why
    for number, column in now.items():
        if number not in before and column.has_missing:
            return f"column {column.name!r} came with a value for the rows that were there"
        if number not in before and (column.enum_labels or column.fields):
            # Rows may have been read since it came by labels or fields that were renamed then.
            return f"column {column.name!r} came with a type that may have changed since"
    if len(now) > len(before) and other_files(state.facts, table.facts):
        return "a column was added and its rows written anew"
    altered = any(now[n].altered_by != each.altered_by for n, each in before.items())
    if altered and other_files(state.facts, table.facts):
        return "a column was altered and its rows written anew"
    kept, will = state.columns, {each.source: each for each in table.columns}
    for each in kept:
        other = will.get(each.source)
        if other != each:
            was = f"{each.name!r} {each.kind} ({each.policy})"
            shown = "nothing" if other is None else f"{other.name!r} {other.kind} ({other.policy})"
            return f"column {each.source!r} was kept as {was}, and is to be {shown}"
    return None


def _column_changed(old: ColumnFacts, new: ColumnFacts) -> str | None:
    if old.name != new.name:
        return f"column {old.name!r} is called {new.name!r}"
    if old.base_oid != new.base_oid:
        return f"column {old.name!r} has another type: {new.type_name}"
    if old.generated != new.generated:
        return f"column {old.name!r} is generated now, or is not any more"
    if old.fields != new.fields:
        return f"the type of column {old.name!r} has other fields"
    labels = dict(new.enum_labels)
    for oid, label in old.enum_labels:
        if labels.get(oid, label) != label:
            return f"label {label!r} of column {old.name!r} is called {labels[oid]!r}"
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


def _gone(state: TableState, named: Mapping[int, str]) -> str:
    facts = state.facts
    if facts.oid in named:
        return f"{facts.schema}.{facts.name} is followed as {named[facts.oid]} now"
    return f"the publication has no table {facts.schema}.{facts.name} any more"
