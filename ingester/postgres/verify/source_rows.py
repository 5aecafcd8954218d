"""A table of the source, read for a comparison: all rows, or those of some keys.

Rows arrive by ``COPY`` in blocks of bytes, one in memory at a time. Nothing is changed, and the
only lock is that of a SELECT.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from ingester.postgres.connection import ask, source_errors
from ingester.postgres.server_errors import SourceFailed
from ingester.postgres.verify.compared_texts import AskedColumn, expression, parse_block, unescaped
from ingester.postgres.verify.differences import (
    FoundRows,
    Key,
    add_rows,
    hash_block,
    hash_keys,
)
from ingester.postgres.verify.row_hashes import Texts

Take = Callable[[list[Texts]], None]
BLOCK_BYTES = 2 << 20
_VERSION = AskedColumn("xmin", 0, None, nulls=False)
_BAD_VALUE = "22"
"""SQLSTATE class of a text that a type cannot hold."""


class SourceColumn(NamedTuple):
    """A compared column."""

    asked: AskedColumn
    type_name: str
    """The type's SQL name."""


class LogEnd(NamedTuple):
    """The end of the source's log, and whether commits are not visible yet."""

    lsn: int
    held_back: bool
    """A logged commit waits for a synchronous standby."""


class ComparedSource:
    """The table at the source; the key's columns come first."""

    def __init__(
        self,
        connection: Any,
        table: tuple[str, str, str],
        columns: Sequence[SourceColumn],
        key_columns: int,
    ) -> None:
        """Take a connection in autocommit.

        Args:
            table: schema, name and kind (``p`` for a partitioned table).
        """
        self._connection = connection
        self._table = table
        self._columns = columns
        self._asked = [column.asked for column in columns]
        self.key_columns = key_columns

    def scan(self, take: Take) -> None:
        """Pass all rows of one snapshot to ``take``, in blocks."""
        self._copy(self._select([]), self._asked, take)

    def find(self, keys: Collection[Key]) -> FoundRows:
        """The rows of these keys in one snapshot."""
        found: FoundRows = {}
        if not keys:
            return found

        def take(columns: list[Texts]) -> None:
            rows = range(len(columns[0].starts))
            add_rows(found, columns[1:], self.key_columns, rows, columns[0])

        try:
            self._copy(self._select(list(keys)), [_VERSION, *self._asked], take)
        except (SourceFailed, UnicodeDecodeError) as exc:
            # A key of the copy that the source's type cannot hold, or that is not UTF-8.
            if not (getattr(exc, "sqlstate", _BAD_VALUE) or "").startswith(_BAD_VALUE):
                raise
            found.clear()
            self._find_in_all(keys, found)
        return {key: row for key, row in found.items() if key in keys}

    def standing(self) -> LogEnd:
        """The end of the log; everything visible so far ends at or before it."""
        [(lsn, waiting)] = ask(
            self._connection,
            "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()"
            " ELSE pg_current_wal_insert_lsn() END - '0/0'::pg_lsn,"
            " EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep')",
        )
        return LogEnd(int(lsn), bool(waiting))

    def _find_in_all(self, keys: Collection[Key], found: FoundRows) -> None:
        hashed = hash_keys(keys)

        def take(columns: list[Texts]) -> None:
            mine = columns[1:]
            places = np.flatnonzero(
                np.isin(hash_block(mine, self.key_columns).keys, hashed)
            ).tolist()
            add_rows(found, mine, self.key_columns, places, columns[0])

        self._copy(self._select([], versions=True), [_VERSION, *self._asked], take)

    def _select(self, keys: list[Key], *, versions: bool = False) -> Any:
        from psycopg2 import sql

        schema, name, kind = self._table
        names = [sql.Identifier(column.name) for column in self._asked]
        # Keys are selected as text and compared by type, so that the index is used.
        shown = [
            sql.SQL(expression(column, name.as_string(self._connection)))
            for column, name in zip(self._asked, names, strict=True)
        ]
        wanted = [sql.SQL("xmin"), *shown] if keys or versions else shown
        # Inheriting tables are copied separately; partitions belong to the table.
        select = sql.SQL("SELECT {} FROM {}{}").format(
            sql.SQL(", ").join(wanted),
            sql.SQL("" if kind == "p" else "ONLY "),
            sql.Identifier(schema, name),
        )
        if not keys:
            return select
        texts = [
            sql.Literal([unescaped(text or b"").decode() for text in column])
            for column in zip(*keys, strict=True)
        ]
        sides = [
            shown[at] if column.asked.form == "bits" else names[at]
            for at, column in enumerate(self._columns[: self.key_columns])
        ]
        kinds = [
            sql.SQL("text" if column.asked.form == "bits" else column.type_name)
            for column in self._columns[: self.key_columns]
        ]
        if len(sides) == 1:
            where = sql.SQL("{} = ANY ({}::text[]::{}[])").format(sides[0], texts[0], kinds[0])
        else:
            where = sql.SQL("({}) IN (SELECT {} FROM unnest({}) AS u ({}))").format(
                sql.SQL(", ").join(sides),
                sql.SQL(", ").join(
                    sql.SQL("k{}::{}").format(sql.SQL(str(at)), kind)
                    for at, kind in enumerate(kinds)
                ),
                sql.SQL(", ").join(sql.SQL("{}::text[]").format(each) for each in texts),
                sql.SQL(", ").join(sql.SQL(f"k{at}") for at in range(len(kinds))),
            )
        return sql.SQL("{} WHERE {}").format(select, where)

    def _copy(self, select: Any, columns: Sequence[AskedColumn], take: Take) -> None:
        from psycopg2 import sql

        blocks = _Blocks(columns, take)
        with source_errors(), self._connection.cursor() as cursor:
            buffer = io.BufferedWriter(blocks, BLOCK_BYTES)
            statement = sql.SQL("COPY ({}) TO STDOUT").format(select)
            cursor.copy_expert(statement, buffer)
            buffer.flush()
        blocks.end()


class _Blocks(io.RawIOBase):
    """Splits COPY's output into blocks of complete lines."""

    def __init__(self, columns: Sequence[AskedColumn], take: Take) -> None:
        self._columns = columns
        self._take = take
        self._rest: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        block = bytes(data)
        end = block.rfind(b"\n") + 1
        if end:
            whole = b"".join([*self._rest, block[:end]])
            self._rest = []
            self._take(parse_block(whole, self._columns))
        if end < len(block):
            self._rest.append(block[end:])
        return len(block)

    def end(self) -> None:
        if self._rest:
            raise ValueError("COPY has ended within a line")
