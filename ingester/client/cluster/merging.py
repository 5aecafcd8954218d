"""Merges the answers of several daemons into one. Pure.

A merged statement holds for all daemons: an origin's durable sequence and its files sequence are
the lowest that a daemon reports, its memory sequence the highest.
``tests/client/cluster/test_rules.py`` checks the rules.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ..wire import OriginState

Objects = list[dict[str, Any]]


def described(answers: Sequence[Objects]) -> Objects:
    """A table as described by the daemon with its newest version; buffered sizes are summed."""
    tables: list[dict[str, Any]] = [answer[0] for answer in answers]
    newest = max(tables, key=_place).copy()
    buffered: dict[str, int] = {}
    for table in tables:
        for name, count in (table.get("buffered") or {}).items():
            buffered[name] = buffered.get(name, 0) + count
    newest["buffered"] = buffered
    return [newest]


def _place(table: dict[str, Any]) -> tuple[int, int]:
    return table.get("table_version") or 1, table.get("manifest_version") or 0


def persisted(answers: Sequence[Objects]) -> Objects:
    """The newest version of each table, which has everything that the daemons persisted."""
    newest: dict[tuple[str, str], dict[str, Any]] = {}
    for table in (table for answer in answers for table in answer):
        name = (table["namespace"], table["table"])
        if name not in newest or _place(table) > _place(newest[name]):
            newest[name] = table
    return [newest[name] for name in sorted(newest)]


def origins(answers: Sequence[Sequence[OriginState]]) -> list[OriginState]:
    """The progress of each origin over all daemons that know it."""
    known: dict[str, list[OriginState]] = {}
    for state in (state for answer in answers for state in answer):
        known.setdefault(state.origin, []).append(state)
    return [_origin(name, known[name]) for name in sorted(known)]


def _origin(name: str, states: Sequence[OriginState]) -> OriginState:
    # A daemon without a memory sequence says nothing about durability.
    writing = [state for state in states if state.memory_sequence is not None]
    told = any(state.there for state in states)
    marks = tuple(sorted({mark for state in states for mark in state.marks}))
    return OriginState(
        name,
        memory_sequence=_highest(state.memory_sequence for state in states),
        durable_sequence=_lowest([state.durable_sequence for state in writing]),
        files_sequence=_lowest([state.files_sequence for state in writing]),
        open=any(state.open for state in states),
        table_sequence=_highest(state.table_sequence for state in states),
        table_newest=_highest(state.table_newest for state in states),
        table_partly=_highest(state.table_partly for state in states),
        marks=marks,
        there=tuple(any(state.has(mark) for state in states) for mark in marks) if told else (),
    )


def _lowest(values: Sequence[int | None]) -> int | None:
    """The lowest value; None if one is missing."""
    known = [value for value in values if value is not None]
    return min(known) if known and len(known) == len(values) else None


def _highest(values: Any) -> int | None:
    return max((value for value in values if value is not None), default=None)


def checkpoint(answers: Sequence[Objects]) -> Objects:
    """A source's state: that of the one daemon whose log has a newer one than the files.

    If several have one, the newest cannot be determined and the state in files is returned. A
    source that numbers its batches continues from there, and known batches count as duplicates.
    """
    states = [answer[0] for answer in answers if answer]
    pending = [state for state in states if not state.get("durable", True)]
    if not pending:
        return states[:1]
    if len(pending) == 1:
        return pending
    settled = dict(pending[0])
    settled |= {"state": settled.get("durable_state"), "shared": settled.get("durable_shared")}
    return [settled | {"durable": True}]


def checkpoints(answers: Sequence[Objects]) -> Objects:
    """The latest state of each partition."""
    newest: dict[tuple[str, str, str], dict[str, Any]] = {}
    for each in (each for answer in answers for each in answer):
        key = (each["namespace"], each["table"], each["partition"])
        if key not in newest or str(each.get("at") or "") > str(newest[key].get("at") or ""):
            newest[key] = each
    return [newest[key] for key in sorted(newest)]


def _origins_action(answers: Sequence[Objects]) -> Objects:
    states = origins([msgspec.convert(answer, list[OriginState]) for answer in answers])
    return [msgspec.to_builtins(state) for state in states]


MERGED: Mapping[str, Callable[[Sequence[Objects]], Objects]] = {
    "describe_table": described,
    "persist": persisted,
    "origins": _origins_action,
    "checkpoint_get": checkpoint,
    "checkpoints": checkpoints,
}
"""The actions that ask all daemons, and the function that merges their answers."""
