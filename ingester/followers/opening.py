"""Opening a copy: from the state that is kept, from the beginning, the tail, a time, or a state.

Law of this file: a state is gone on from only if it is of this table, this daemon and this history
of the table. Where only the selection or the sink is another one, the copy is built anew beside the
earlier one.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from ingester.client.errors import InvalidRequest
from ingester.followers.errors import StateOfAnother
from ingester.followers.keeping import BuildAnew, Place
from ingester.followers.sink import FollowedTable
from ingester.followers.state import (
    FollowState,
    Ledger,
    Selection,
    decode_state,
)
from ingester.followers.table_copy import Source, TableCopy, other_daemon
from persist.manifest import MomentNotKept, TableState

Seek = Literal["beginning", "tail"] | datetime | bytes
"""Where a copy begins: with all that there is; with what comes from now on; with what came into
files since a time, or is in none; or where a state is that was kept elsewhere."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What is to be opened."""

    table: FollowedTable
    selection: Selection
    seek: Seek | None = None
    begin: Seek = "beginning"
    """Where a copy begins that is not there, and is not sought elsewhere."""
    replaces: bool = False
    """Whether readers see the copy of another version of the table."""


def open_table_copy(opening: Opening, source: Source, place: Place) -> TableCopy:
    """The copy, which is then advanced.

    Raises:
        StateDamaged, StateOfAnother, TableReplaced: The state cannot be gone on from.
        InvalidRequest: No such place to seek to.
        ClientError, StoreError: The daemon or the store cannot be asked.
    """
    seek, key = opening.seek, opening.table.key(place.name)
    with place.sink.transaction():
        there = place.states.get(key)
    data = seek if isinstance(seek, bytes) else there
    kept: tuple[FollowState, Ledger] | None = None
    if data is not None and (seek is None or isinstance(seek, bytes)):
        kept = decode_state(data)
        _check_table(kept[0], opening.table)
    begin = source.feed.ask(None, None, 0.0)
    if kept is not None:
        state, ledger = kept
        if state.ingester_id != begin.ingester_id:
            raise other_daemon(state, begin.ingester_id)
        copy = TableCopy(opening.table, source, place, state, ledger)
        try:
            copy.recover()
        except BuildAnew:
            copy.begin(opening.selection)
        else:
            lost = state.filled is not None and not place.sink.transactional
            if lost or state.selection != opening.selection:
                copy.begin(opening.selection)
        return copy
    new = _new_state(opening, begin.ingester_id, replaces=there is not None or opening.replaces)
    copy = TableCopy(opening.table, source, place, new, Ledger())
    start = opening.begin if seek is None else seek
    if start == "beginning" or isinstance(start, bytes):
        copy.begin()
    elif start == "tail":
        copy.begin_behind(source.files.version(begin.version), begin.position)
    else:
        copy.begin_behind(_as_of(source, start), None)
    return copy


def _new_state(opening: Opening, ingester_id: str, *, replaces: bool) -> FollowState:
    table = opening.table
    return FollowState(
        namespace=table.namespace,
        table=table.table,
        table_version=table.table_version,
        ingester_id=ingester_id,
        selection=opening.selection,
        version=0,
        uid="",
        replaces=replaces,
    )


def _check_table(state: FollowState, table: FollowedTable) -> None:
    there = (state.namespace, state.table, state.table_version)
    if there != (table.namespace, table.table, table.table_version):
        raise StateOfAnother(
            f"the state is of table {there[0]}/{there[1]} version {there[2]}, and not of"
            f" {table.namespace}/{table.table} version {table.table_version}"
        )


def _as_of(source: Source, moment: datetime) -> TableState:
    try:
        return source.files.as_of(moment)
    except (MomentNotKept, ValueError) as exc:
        raise InvalidRequest(f"seek: {exc}") from exc
