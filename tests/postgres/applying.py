"""A model of how the daemon applies messages: tables are dicts of rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ingester.postgres.collector import TruncatedTable
from ingester.postgres.sync_messages import SyncMessage

Row = dict[str, Any]
Tables = dict[str, dict[tuple[Any, ...], Row]]
"""The rows of each table by key."""


def apply_messages(messages: Iterable[SyncMessage | TruncatedTable], tables: Tables) -> None:
    """Apply changes row by row, in order."""
    for message in messages:
        if isinstance(message, TruncatedTable):
            tables[message.target] = {}
        else:
            _apply(message, tables.setdefault(message.table, {}))


def _apply(message: SyncMessage, rows: dict[tuple[Any, ...], Row]) -> None:
    columns = message.batch.to_pydict().values()
    names = [column.name for column in message.columns if column.role == "new_pk"]
    for values in zip(*columns, strict=True):
        by_role: dict[str, Row] = {"old_pk": {}, "new_pk": {}, "value": {}, "changed": {}}
        for column, value in zip(message.columns, values, strict=True):
            by_role[column.role][column.name] = value
        old, new = (tuple(by_role[role][name] for name in names) for role in ("old_pk", "new_pk"))
        before: Row = {}
        if None not in old:
            before = rows.pop(old, {})
        if None not in new:
            kept = {name for name, changed in by_role["changed"].items() if not changed}
            sent = {name: v for name, v in by_role["value"].items() if name not in kept}
            rows[new] = {**before, **by_role["new_pk"], **sent}
