"""Namespaces, tables and keys, as drivers ask for them: the catalogue of Flight SQL.

There is one catalogue, ``ingester``; its schemas are the namespaces that the caller may read. A
pattern has ``%`` for any text, ``_`` for any character, and ``\\`` before one that stands for
itself. Schemas of tables are sent a few tables at a time: each is opened, and the first time that
reads the store.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from ingester.buffer import TableBuffer
from ingester.errors import BadRequest, UnknownTable
from ingester.protobuf import signed
from ingester.server.auth.rights import Sees
from ingester.server.flight.sql import SqlCall
from ingester.server.flight_sql import sql_info, type_info
from ingester.server.flight_sql.messages import Message, unsupported
from ingester.server.flight_sql.type_info import columns
from ingester.server.portal import Portal
from ingester.server.services import Services
from ingester.shown_text import shown_name
from persist.table import TableKey

CATALOG = "ingester"
TABLE = "TABLE"
MAX_PATTERN = 1024
"""The longest pattern; names have at most 128 characters."""
BATCH_ROWS = 1000
BATCH_BYTES = 1 << 20
"""Drivers refuse messages from 4 MiB on, and a wide schema may have 1 MiB."""


CATALOGS = columns("text catalog_name!")
DB_SCHEMAS = columns("text catalog_name, text db_schema_name!")
_TABLE_COLUMNS = "text catalog_name, text db_schema_name, text table_name!, text table_type!"
TABLES = columns(_TABLE_COLUMNS)
TABLES_WITH_SCHEMA = columns(f"{_TABLE_COLUMNS}, bytes table_schema!")
TABLE_TYPES = columns("text table_type!")
# In the order of the reference implementations; FlightSql.proto names the last two the other way.
PRIMARY_KEYS = columns(
    "text catalog_name, text db_schema_name, text table_name!, text column_name!,"
    "int key_sequence!, text key_name"
)
FOREIGN_KEYS = columns(
    "text pk_catalog_name, text pk_db_schema_name, text pk_table_name!, text pk_column_name!,"
    "text fk_catalog_name, text fk_db_schema_name, text fk_table_name!, text fk_column_name!,"
    "int key_sequence!, text fk_key_name, text pk_key_name, byte update_rule!, byte delete_rule!"
)
Batches = Iterator[pa.RecordBatch]


class Metadata:
    """Answers the metadata commands of Flight SQL. Any thread; the loop only opens tables."""

    def __init__(self, services: Services, portal: Portal) -> None:
        self._services = services
        self._portal = portal

    def schema(self, call: SqlCall, command: Message) -> pa.Schema:
        """Return the schema of a command's answer.

        Raises:
            NotAvailable: the command is not supported.
        """
        if command.name not in QUESTIONS:
            raise unsupported(command.name)
        if command.name == "CommandGetTables" and command.number(5):
            return TABLES_WITH_SCHEMA
        return QUESTIONS[command.name][0]

    def batches(self, call: SqlCall, command: Message) -> Batches:
        """Return a command's answer. It raises errors when it is iterated."""
        return QUESTIONS[command.name][1](self, call, command)

    def catalogs(self, call: SqlCall, command: Message) -> Batches:
        """Answer CommandGetCatalogs."""
        yield _batch(CATALOGS, [(CATALOG,)])

    def db_schemas(self, call: SqlCall, command: Message) -> Batches:
        """Answer CommandGetDbSchemas."""
        keys = self._keys(call, command.optional_text(1), command.optional_text(2), None)
        names = dict.fromkeys(namespace for namespace, _ in keys)
        yield _batch(DB_SCHEMAS, [(CATALOG, name) for name in names])

    def tables(self, call: SqlCall, command: Message) -> Batches:
        """Answer CommandGetTables."""
        types, schema = command.texts(4), self.schema(call, command)
        keys = self._keys(call, *(command.optional_text(number) for number in (1, 2, 3)))
        if types and TABLE not in types:
            return
        rows, nbytes = list[tuple[object, ...]](), 0
        for key in keys:
            row: tuple[object, ...] = (CATALOG, *key, TABLE)
            if schema is TABLES_WITH_SCHEMA:
                table = self._open(call, key)
                if table is None:
                    continue
                row = (*row, encoded := bytes(described_schema(table).serialize()))
                nbytes += len(encoded)
            rows.append(row)
            if len(rows) >= BATCH_ROWS or nbytes >= BATCH_BYTES:
                yield _batch(schema, rows)
                rows, nbytes = [], 0
        yield _batch(schema, rows)

    def table_types(self, call: SqlCall, command: Message) -> Batches:
        """Answer CommandGetTableTypes."""
        yield _batch(TABLE_TYPES, [(TABLE,)])

    def primary_keys(self, call: SqlCall, command: Message) -> Batches:
        """Answer CommandGetPrimaryKeys."""
        catalog, namespace = command.optional_text(1), command.optional_text(2)
        keys: list[tuple[object, ...]] = []
        for key in self._keys(call, catalog, None, None):
            if namespace in (None, key[0]) and key[1] == command.text(3):
                table = self._open(call, key)
                columns = () if table is None else table.definition.primary_key
                keys += ((CATALOG, *key, name, at, None) for at, name in enumerate(columns, 1))
        yield _batch(PRIMARY_KEYS, keys)

    def foreign_keys(self, call: SqlCall, command: Message) -> Batches:
        """Answer the three commands for foreign keys: there are none."""
        yield _batch(FOREIGN_KEYS, [])

    def sql_info(self, call: SqlCall, command: Message) -> Batches:
        """Answer CommandGetSqlInfo."""
        yield sql_info.sql_info(command.numbers(1))

    def type_info(self, call: SqlCall, command: Message) -> Batches:
        """Answer CommandGetXdbcTypeInfo."""
        yield type_info.type_info(signed(command.number(1)) if command.has(1) else None)

    def _keys(
        self, call: SqlCall, catalog: str | None, namespaces: str | None, tables: str | None
    ) -> list[TableKey]:
        """Return the tables that the caller may read, by catalogue and patterns; sorted."""
        if catalog not in (None, CATALOG):
            return []
        sees: Sees | None = call.permit.sees("get sql")
        keys = self._portal.call(self._services.catalog.names)
        in_namespace = matching([namespace for namespace, _ in keys], namespaces)
        named = matching([table for _, table in keys], tables)
        found = [key for key in keys if key[0] in in_namespace and key[1] in named]
        return [key for key in found if sees is None or sees(key[0])]

    def _open(self, call: SqlCall, key: TableKey) -> TableBuffer | None:
        """Return a table; None if it was deleted meanwhile."""
        call.permit.renew()
        try:
            return self._portal.call(self._services.catalog.open, *key)
        except UnknownTable:
            return None


QUESTIONS: dict[str, tuple[pa.Schema, Callable[[Metadata, SqlCall, Message], Batches]]] = {
    "CommandGetCatalogs": (CATALOGS, Metadata.catalogs),
    "CommandGetDbSchemas": (DB_SCHEMAS, Metadata.db_schemas),
    "CommandGetTables": (TABLES, Metadata.tables),
    "CommandGetTableTypes": (TABLE_TYPES, Metadata.table_types),
    "CommandGetPrimaryKeys": (PRIMARY_KEYS, Metadata.primary_keys),
    "CommandGetExportedKeys": (FOREIGN_KEYS, Metadata.foreign_keys),
    "CommandGetImportedKeys": (FOREIGN_KEYS, Metadata.foreign_keys),
    "CommandGetCrossReference": (FOREIGN_KEYS, Metadata.foreign_keys),
    "CommandGetSqlInfo": (sql_info.SCHEMA, Metadata.sql_info),
    "CommandGetXdbcTypeInfo": (type_info.SCHEMA, Metadata.type_info),
}
"""The metadata commands by name."""


def _batch(schema: pa.Schema, rows: list[tuple[object, ...]]) -> pa.RecordBatch:
    dicts = [dict(zip(schema.names, row, strict=True)) for row in rows]
    return pa.RecordBatch.from_pylist(dicts, schema)


def described_schema(table: TableBuffer) -> pa.Schema:
    """Return a table's schema with what Flight SQL tells of each column in the fields' metadata."""
    return type_info.described(
        table.definition.schema,
        CATALOG_NAME=CATALOG,
        DB_SCHEMA_NAME=table.namespace,
        TABLE_NAME=table.name,
        IS_AUTO_INCREMENT="0",
        IS_CASE_SENSITIVE="0",
        IS_READ_ONLY="0",
    )


def matching(names: list[str], pattern: str | None) -> set[str]:
    """Return the names that match a pattern; all without one.

    Raises:
        BadRequest: the pattern is too long.
    """
    if pattern is None:
        return set(names)
    if len(pattern) > MAX_PATTERN:
        raise BadRequest(f"pattern {shown_name(pattern)} has more than {MAX_PATTERN} characters")
    # Not match_like, which drops a backslash before an ordinary character. RE2 takes linear time.
    special = {"%": ".*", "_": "."}
    tokens = re.findall(r"\\.|.", pattern, re.DOTALL)
    regex = "".join(special.get(each) or re.escape(each[-1]) for each in tokens)
    column = pa.array(names, pa.string())
    return set(column.filter(pc.match_substring_regex(column, f"(?s)^{regex}$")).to_pylist())
