"""Namespaces, tables and keys, as drivers ask for them: the catalogue of Flight SQL.

There is one catalogue, ``ingester``; its schemas are the namespaces that the caller may read. A
pattern has ``%`` for any text, ``_`` for any character, and ``\\`` before one that stands for
itself. Schemas of tables are sent a few tables at a time: each is opened, and the first time that
reads the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from ingester.buffer import TableBuffer
from ingester.errors import BadRequest, UnknownTable
from ingester.protobuf import signed
from ingester.server.auth.rights import Sees
from ingester.server.flight.sql import SqlCall
from ingester.server.flight_sql import sql_info, type_info
from ingester.server.flight_sql.messages import Message
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


def _schema(*names: str, more: tuple[pa.Field, ...] = ()) -> pa.Schema:
    """Make a schema of texts; a name with ``!`` is not nullable."""
    texts = [pa.field(name.rstrip("!"), pa.string(), not name.endswith("!")) for name in names]
    return pa.schema([*texts, *more])


_SEQUENCE = pa.field("key_sequence", pa.int32(), nullable=False)
CATALOGS = _schema("catalog_name!")
DB_SCHEMAS = _schema("catalog_name", "db_schema_name!")
TABLES = _schema("catalog_name", "db_schema_name", "table_name!", "table_type!")
TABLES_WITH_SCHEMA = TABLES.append(pa.field("table_schema", pa.binary(), nullable=False))
TABLE_TYPES = _schema("table_type!")
# In the order of the reference implementations; FlightSql.proto names the last two the other way.
PRIMARY_KEYS = _schema(
    "catalog_name", "db_schema_name", "table_name!", "column_name!",
    more=(_SEQUENCE, pa.field("key_name", pa.string())),
)  # fmt: skip
FOREIGN_KEYS = _schema(
    "pk_catalog_name", "pk_db_schema_name", "pk_table_name!", "pk_column_name!",
    "fk_catalog_name", "fk_db_schema_name", "fk_table_name!", "fk_column_name!",
    more=(
        _SEQUENCE,
        pa.field("fk_key_name", pa.string()),
        pa.field("pk_key_name", pa.string()),
        pa.field("update_rule", pa.uint8(), nullable=False),
        pa.field("delete_rule", pa.uint8(), nullable=False),
    ),
)  # fmt: skip

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class _Question:
    """One kind of metadata: the schema of its answer, and the answer."""

    schema: Callable[[Message], pa.Schema]
    batches: Callable[[Metadata, SqlCall, Message], Batches]


class Metadata:
    """Answers the metadata commands of Flight SQL. Any thread; the loop only opens tables."""

    def __init__(self, services: Services, portal: Portal) -> None:
        self._services = services
        self._portal = portal

    def schema(self, command: Message) -> pa.Schema:
        """Return the schema of a command's answer. Raises BadRequest."""
        return QUESTIONS[command.name].schema(command)

    def batches(self, call: SqlCall, command: Message) -> Batches:
        """Return a command's answer. It raises errors when it is iterated."""
        return QUESTIONS[command.name].batches(self, call, command)

    def catalogs(self, call: SqlCall, command: Message) -> Batches:
        """Answer CommandGetCatalogs."""
        yield pa.RecordBatch.from_pylist([{"catalog_name": CATALOG}], CATALOGS)

    def db_schemas(self, call: SqlCall, command: Message) -> Batches:
        """Answer CommandGetDbSchemas."""
        keys = self._keys(call, command.optional_text(1), command.optional_text(2), None)
        names = list(dict.fromkeys(namespace for namespace, _ in keys))
        yield pa.record_batch([[CATALOG] * len(names), names], schema=DB_SCHEMAS)

    def tables(self, call: SqlCall, command: Message) -> Batches:
        """Answer CommandGetTables."""
        types, schema = command.texts(4), self.schema(command)
        keys = self._keys(call, *(command.optional_text(number) for number in (1, 2, 3)))
        if types and TABLE not in types:
            return
        rows: list[dict[str, object]] = []
        nbytes = 0
        for namespace, name in keys:
            row: dict[str, object] = {
                "catalog_name": CATALOG,
                "db_schema_name": namespace,
                "table_name": name,
                "table_type": TABLE,
            }
            if schema is TABLES_WITH_SCHEMA:
                table = self._open(call, (namespace, name))
                if table is None:
                    continue
                encoded = bytes(described_schema(table).serialize())
                row["table_schema"] = encoded
                nbytes += len(encoded)
            rows.append(row)
            if len(rows) >= BATCH_ROWS or nbytes >= BATCH_BYTES:
                yield pa.RecordBatch.from_pylist(rows, schema)
                rows, nbytes = [], 0
        yield pa.RecordBatch.from_pylist(rows, schema)

    def table_types(self, call: SqlCall, command: Message) -> Batches:
        """Answer CommandGetTableTypes."""
        yield pa.RecordBatch.from_pylist([{"table_type": TABLE}], TABLE_TYPES)

    def primary_keys(self, call: SqlCall, command: Message) -> Batches:
        """Answer CommandGetPrimaryKeys."""
        catalog, namespace = command.optional_text(1), command.optional_text(2)
        rows: list[dict[str, object]] = []
        for key in self._keys(call, catalog, None, None):
            if namespace not in (None, key[0]) or key[1] != command.text(3):
                continue
            table = self._open(call, key)
            columns = () if table is None else table.definition.primary_key
            rows += (
                {
                    "catalog_name": CATALOG,
                    "db_schema_name": key[0],
                    "table_name": key[1],
                    "column_name": column,
                    "key_sequence": index + 1,
                }
                for index, column in enumerate(columns)
            )
        yield pa.RecordBatch.from_pylist(rows, PRIMARY_KEYS)

    def foreign_keys(self, call: SqlCall, command: Message) -> Batches:
        """Answer the three commands for foreign keys: there are none."""
        yield pa.RecordBatch.from_pylist([], FOREIGN_KEYS)

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
        in_namespace, is_table = pattern_test(namespaces), pattern_test(tables)
        found = [key for key in keys if sees is None or sees(key[0])]
        return [key for key in found if in_namespace(key[0]) and is_table(key[1])]

    def _open(self, call: SqlCall, key: TableKey) -> TableBuffer | None:
        """Return a table; None if it was deleted meanwhile."""
        call.permit.renew()
        try:
            return self._portal.call(self._services.catalog.open, *key)
        except UnknownTable:
            return None


def _fixed(schema: pa.Schema) -> Callable[[Message], pa.Schema]:
    return lambda command: schema


def _of_tables(command: Message) -> pa.Schema:
    return TABLES_WITH_SCHEMA if command.number(5) else TABLES


_FOREIGN = _Question(_fixed(FOREIGN_KEYS), Metadata.foreign_keys)
QUESTIONS = {
    "CommandGetCatalogs": _Question(_fixed(CATALOGS), Metadata.catalogs),
    "CommandGetDbSchemas": _Question(_fixed(DB_SCHEMAS), Metadata.db_schemas),
    "CommandGetTables": _Question(_of_tables, Metadata.tables),
    "CommandGetTableTypes": _Question(_fixed(TABLE_TYPES), Metadata.table_types),
    "CommandGetPrimaryKeys": _Question(_fixed(PRIMARY_KEYS), Metadata.primary_keys),
    "CommandGetExportedKeys": _FOREIGN,
    "CommandGetImportedKeys": _FOREIGN,
    "CommandGetCrossReference": _FOREIGN,
    "CommandGetSqlInfo": _Question(_fixed(sql_info.SCHEMA), Metadata.sql_info),
    "CommandGetXdbcTypeInfo": _Question(_fixed(type_info.SCHEMA), Metadata.type_info),
}
"""The metadata commands by name."""


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


def pattern_test(pattern: str | None) -> Callable[[str], bool]:
    """Return a test for names. Without a pattern every name passes.

    The test takes time proportional to the product of the lengths at most; a regular expression
    would not be bounded.

    Raises:
        BadRequest: the pattern is too long.
    """
    if pattern is None:
        return lambda name: True
    if len(pattern) > MAX_PATTERN:
        raise BadRequest(f"pattern {shown_name(pattern)} has more than {MAX_PATTERN} characters")
    parts = _parts(pattern)
    return lambda name: _matches(parts, name)


_ANY_TEXT, _ANY_CHARACTER = "%", "_"


def _parts(pattern: str) -> list[tuple[bool, str]]:
    """Split a pattern into characters, each with whether it is special."""
    parts: list[tuple[bool, str]] = []
    escaped = False
    for character in pattern:
        if not escaped and character == "\\":
            escaped = True
            continue
        parts.append((not escaped and character in "%_", character))
        escaped = False
    return [*parts, (False, "\\")] if escaped else parts


def _matches(parts: list[tuple[bool, str]], name: str) -> bool:
    at = index = 0
    back: tuple[int, int] | None = None  # after the last %: where in the pattern, and in the name
    while index < len(name):
        special, character = parts[at] if at < len(parts) else (False, "")
        if special and character == _ANY_TEXT:
            at += 1
            back = at, index
        elif character == name[index] or (special and character == _ANY_CHARACTER):
            at, index = at + 1, index + 1
        elif back is not None:
            at, index = back[0], back[1] + 1
            back = at, index
        else:
            return False
    return all(special and character == _ANY_TEXT for special, character in parts[at:])
