"""The source: its publication, its slot, a first copy of its tables, the stream of their changes.

Law of this file: the slot moves to where it is told, and past what concerns no table once all
before that is safe; it is made once, with the snapshot that the first copy reads, so that copy and
stream have each change once.
"""

from __future__ import annotations

import select
from collections.abc import Iterator
from typing import Any, NamedTuple

from ingester.postgres.collector import Shape, ShapeColumn
from ingester.postgres.connection import connect, told
from ingester.postgres.pgoutput import Column, Message, Relation, parse
from ingester.postgres.server_errors import SourceFailed
from ingester.postgres.types import column_type

__all__ = [
    "NoKey",
    "Slot",
    "Source",
    "SourceFailed",
    "SourceTable",
    "TextRow",
    "keys_of",
    "shape_of",
    "table_name",
]

COPY_ROWS = 20_000
_FILTERS_SINCE = 150_000
"""The server's version, as libpq says it."""


TextRow = tuple[str | None, ...]


class NoKey(ValueError):
    """A table without a primary key cannot be replicated."""


class _Typed(NamedTuple):
    base_oid: int
    base_modifier: int


class SourceTable(NamedTuple):
    """A table of the source with its primary key."""

    relation: Relation
    key: tuple[str, ...]


class Slot(NamedTuple):
    """The place in the server's log at which the changes begin."""

    confirmed_lsn: int
    snapshot: str | None
    """The name of what the tables were at that point, if the slot was made just now."""


def keys_of(tables: list[SourceTable]) -> dict[tuple[str, str], tuple[str, ...]]:
    """The primary key of each table by (schema, name)."""
    return {(table.relation.schema, table.relation.name): table.key for table in tables}


def shape_of(relation: Relation, key: tuple[str, ...]) -> Shape:
    """The shape by which a table is followed: all of its columns, under their names."""
    columns = tuple(
        ShapeColumn(name, name, column_type(_Typed(oid, modifier)))
        for name, oid, modifier in relation.columns
    )
    name = table_name(relation)
    return Shape(name, key, columns, full_identity=relation.identity == "f")


def table_name(relation: Relation) -> str:
    """The table's name here: with its schema, unless that is ``public``."""
    return relation.name if relation.schema == "public" else f"{relation.schema}.{relation.name}"


class Source:
    """One database, by a DSN as libpq has it; one publication and one slot in it."""

    def __init__(self, dsn: str, publication: str, slot: str) -> None:
        """Raises psycopg2.OperationalError: the server cannot be reached."""
        self._dsn = dsn
        self._publication = publication
        self._slot = slot
        self._plain = connect(dsn)
        self._streaming: Any = connect(dsn, replication=True)
        self._cursor = self._streaming.cursor()

    def close(self) -> None:
        """Drop the connections; the slot stays."""
        self._streaming.close()
        self._plain.close()

    def publish(self, tables: list[str]) -> None:
        """Make the publication of these tables (all, where none is named) unless it is there.

        Raises:
            SourceFailed
        """
        from psycopg2 import sql

        if self._asked("SELECT 1 FROM pg_publication WHERE pubname = %s", self._publication):
            return
        what = sql.SQL("ALL TABLES")
        if tables:
            full = [table if "." in table else f"public.{table}" for table in tables]
            names = [sql.Identifier(*table.split(".")) for table in full]
            what = sql.SQL("TABLE ") + sql.SQL(", ").join(names)
        make = sql.SQL("CREATE PUBLICATION {} FOR ").format(sql.Identifier(self._publication))
        with told(), self._plain.cursor() as cursor:
            cursor.execute(make + what)

    def tables(self) -> list[SourceTable]:
        """The tables of the publication.

        Raises:
            SourceFailed: one says too little of changed rows, or the publication leaves some out.
        """
        self._check_whole()
        found = self._asked(
            "SELECT c.oid::bigint, n.nspname, c.relname, c.relreplident::text"
            " FROM pg_publication_tables p"
            " JOIN pg_namespace n ON n.nspname = p.schemaname"
            " JOIN pg_class c ON c.relname = p.tablename AND c.relnamespace = n.oid"
            " WHERE p.pubname = %s ORDER BY 2, 3",
            self._publication,
        )
        for _, schema, name, identity in found:
            if identity not in ("d", "f"):
                raise SourceFailed(
                    f"table {schema}.{name}: its REPLICA IDENTITY is neither DEFAULT nor FULL"
                )
        return [self._table(oid, schema, name) for oid, schema, name, _ in found]

    def _check_whole(self) -> None:
        """Refuse a publication that leaves something out: a copy of it would never be right."""
        for inserts, updates, deletes in self._asked(
            "SELECT pubinsert, pubupdate, pubdelete FROM pg_publication WHERE pubname = %s",
            self._publication,
        ):
            if not (inserts and updates and deletes):
                raise SourceFailed(
                    f"publication {self._publication!r} does not publish insert, update and delete"
                )
        if self._plain.server_version < _FILTERS_SINCE:
            return
        for schema, name, what in self._asked(
            "SELECT n.nspname, c.relname,"
            " CASE WHEN r.prqual IS NULL THEN 'list of columns' ELSE 'row filter' END"
            " FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid"
            " JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE p.pubname = %s AND (r.prqual IS NOT NULL OR r.prattrs IS NOT NULL)"
            " ORDER BY 1, 2",
            self._publication,
        ):
            raise SourceFailed(
                f"table {schema}.{name}: publication {self._publication!r} has a {what} for it;"
                " only whole tables can be followed"
            )

    def newest_lsn(self) -> int:
        """The end of the source's log."""
        [(lsn,)] = self._asked("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
        return int(lsn)

    def _table(self, oid: int, schema: str, name: str) -> SourceTable:
        columns = self._asked(
            "SELECT attname, atttypid::bigint, atttypmod FROM pg_attribute"
            " WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped AND attgenerated = ''"
            " ORDER BY attnum",
            oid,
        )
        key = self._asked(
            "SELECT a.attname FROM pg_index i JOIN pg_attribute a"
            " ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)"
            " WHERE i.indrelid = %s AND i.indisprimary ORDER BY array_position(i.indkey, a.attnum)",
            oid,
        )
        relation = Relation(oid, schema, name, tuple(Column(*column) for column in columns))
        return SourceTable(relation, tuple(column for (column,) in key))

    def slot(self) -> Slot:
        """The slot, made if it is not there.

        Raises:
            SourceFailed: it belongs to another plugin or is in use; too few are allowed.
        """
        found = self._asked(
            "SELECT plugin, confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots"
            " WHERE slot_name = %s",
            self._slot,
        )
        if found:
            [(plugin, confirmed)] = found
            if plugin != "pgoutput":
                raise SourceFailed(f"slot {self._slot!r} is of plugin {plugin!r}, not pgoutput")
            return Slot(int(confirmed), None)
        with told():
            self._cursor.create_replication_slot(self._slot, output_plugin="pgoutput")
            _, lsn, snapshot, _ = self._cursor.fetchone()
        high, low = lsn.split("/")
        return Slot((int(high, 16) << 32) + int(low, 16), snapshot)

    def drop_slot(self) -> None:
        """Raises :class:`SourceFailed`: it is in use."""
        with told():
            self._cursor.drop_replication_slot(self._slot)

    def copy(self, table: SourceTable, snapshot: str) -> Iterator[list[TextRow]]:
        """The table's rows at a snapshot, as texts, some at a time."""
        import psycopg2.extensions
        from psycopg2 import sql

        relation = table.relation
        columns = sql.SQL(", ").join(sql.Identifier(column.name) for column in relation.columns)
        # What the types' output functions say, as in the stream; a cast to text may differ.
        kinds = tuple(column.type_oid for column in relation.columns)
        as_sent = psycopg2.extensions.new_type(kinds, "AS_SENT", lambda text, cursor: text)
        [(kind,)] = self._asked("SELECT relkind::text FROM pg_class WHERE oid = %s", relation.oid)
        # Tables that inherit from it are copied by themselves; partitions belong to it.
        only = "" if kind == "p" else "ONLY "
        select_all = sql.SQL("SELECT {} FROM " + only + "{}").format(
            columns, sql.Identifier(relation.schema, relation.name)
        )
        with told():
            connection = connect(self._dsn)
            try:
                connection.autocommit = False
                connection.set_session(isolation_level="REPEATABLE READ", readonly=True)
                with connection.cursor() as cursor:
                    cursor.execute("SET TRANSACTION SNAPSHOT %s", (snapshot,))
                with connection.cursor(name="copy") as cursor:
                    psycopg2.extensions.register_type(as_sent, cursor)
                    cursor.execute(select_all)
                    while rows := cursor.fetchmany(COPY_ROWS):
                        yield [tuple(row) for row in rows]
            finally:
                connection.close()

    def start(self) -> None:
        """Begin to stream from where the slot stands.

        Raises:
            SourceFailed: somebody else reads from it.
        """
        options = {"proto_version": "1", "publication_names": f'"{self._publication}"'}
        with told():
            self._cursor.start_replication(self._slot, decode=False, options=options)

    def read(self, wait_s: float) -> Message | None:
        """The next message that says something of rows; None where none comes in that time."""
        while True:
            with told():
                found = self._cursor.read_message()
            if found is None:
                if not select.select([self._cursor], [], [], wait_s)[0]:
                    return None
                wait_s = 0.0
                continue
            message = parse(found.payload)
            if message is not None:
                return message

    def advance(self, durable_lsn: int, *, reply: bool) -> None:
        """Tell that all up to here is safe: the slot need not keep it."""
        self._cursor.send_feedback(
            write_lsn=durable_lsn, flush_lsn=durable_lsn, apply_lsn=durable_lsn, reply=reply
        )

    def _asked(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with told(), self._plain.cursor() as cursor:
            cursor.execute(query, values)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows
