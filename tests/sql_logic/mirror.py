"""Loads the tables of a DuckDB connection into a daemon, with its client, in various states.

    files      written in parts, each flushed
    mixed      the last part is only in the buffer
    buffered   nothing is flushed
    keyed      wrong values first, partly flushed, then the right ones; other rows are deleted

The state of a table is chosen by a seed and its name. A changed table is loaded again under the
same name in a new namespace, unless rows were only added.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from random import Random

import pyarrow as pa

from ingester.client import Client, ClientError
from tests.sql_logic.engines import LocalEngine

# DuckDB's types that tables of the daemon have, also within lists, structs and maps.
_STORED = re.compile(
    r"(BOOLEAN|U?(TINY|SMALL|BIG)INT|U?INTEGER|FLOAT|DOUBLE|DECIMAL\(\d+,\d+\)|VARCHAR|BLOB|DATE"
    r"|TIMESTAMP( WITH TIME ZONE|_NS)?)"
)
_NESTED = re.compile(r'STRUCT|MAP|\[\]|"(?:[^"]|"")*"|\b\w+ (?=\w)|[(), ]')
_MAX_ROWS = 20_000
_KEYS = (pa.types.is_integer, pa.types.is_string, pa.types.is_date32)


def is_stored(kind: str) -> bool:
    """Return whether the daemon has a type of DuckDB."""
    left = _STORED.sub("", kind)
    return not _STORED.search(left) and not re.search(r"[A-Z0-9]", _NESTED.sub("", left))


@dataclass
class Mirror:
    """The tables of a script, at a daemon and in a local copy.

    Attributes:
        unavailable: Why a table of the script is not there, by name.
    """

    client: Client
    namespace: str
    random: Random
    copy: LocalEngine = field(init=False)
    unavailable: dict[str, str] = field(default_factory=dict)
    states: Counter[str] = field(default_factory=Counter)
    tables: dict[str, pa.Table] = field(default_factory=dict)
    _stored: dict[str, pa.Table] = field(default_factory=dict)
    _shuffled: dict[int, LocalEngine] = field(default_factory=dict)
    _generation: int = 0

    def __post_init__(self) -> None:
        self.copy = LocalEngine(self.name)

    @property
    def name(self) -> str:
        """The namespace that has the tables now."""
        return f"{self.namespace}_{self._generation}"

    def refresh(self, source: LocalEngine) -> None:
        """Bring daemon and copy up to the tables of ``source``."""
        wanted = self._read(source)
        grown = all(_begins_with(wanted.get(t), rows) for t, rows in self.tables.items())
        if not grown:
            self._generation += 1
            self.tables, self._stored = {}, {}
            self.close()
            self.copy = LocalEngine(self.name)
        for table, rows in wanted.items():
            there = self.tables.get(table)
            if there is not None and there.num_rows == rows.num_rows:
                continue
            try:
                self._stored[table] = self._load(table, rows, there)
            except ClientError as exc:
                self.unavailable[table] = f"{type(exc).__name__}: {exc}"[:200]
                continue
            self.tables[table] = rows
            self.copy.load({table: self._stored[table]})
            self._forget_shuffled()

    def shuffled(self, seed: int) -> LocalEngine:
        """Return a copy of the tables with their rows in another order, kept until they change."""
        if seed not in self._shuffled:
            self._shuffled[seed] = copy = LocalEngine(self.name)
            random = Random(seed)
            for table, rows in self._stored.items():
                order = random.sample(range(rows.num_rows), rows.num_rows)
                copy.load({table: rows.take(pa.array(order, pa.int64()))})
        return self._shuffled[seed]

    def close(self) -> None:
        """Free all copies."""
        self.copy.close()
        self._forget_shuffled()

    def _forget_shuffled(self) -> None:
        for copy in self._shuffled.values():
            copy.close()
        self._shuffled = {}

    def _read(self, source: LocalEngine) -> dict[str, pa.Table]:
        self.unavailable = {}
        found: dict[str, pa.Table] = {}
        columns: dict[str, list[str]] = {}
        for table, kind in source.do(
            "SELECT table_name, data_type FROM duckdb_columns() WHERE NOT internal "
            "AND database_name = 'ingester' AND schema_name = 'main' "
            "ORDER BY table_oid, column_index"
        ):
            columns.setdefault(table, []).append(kind)
        tables = {row[0] for row in source.do("SELECT table_name FROM duckdb_tables()")}
        for table, kinds in columns.items():
            refused = [kind for kind in kinds if not is_stored(kind)]
            if table not in tables:
                self.unavailable[table] = "a view"
            elif refused:
                self.unavailable[table] = f"type {refused[0]}"
            else:
                quoted = table.replace('"', '""')
                ((count,),) = source.do(f'SELECT count(*) FROM main."{quoted}"')
                if count > _MAX_ROWS:
                    self.unavailable[table] = "too many rows"
                else:
                    found[table] = source.run(f'FROM main."{quoted}"').combine_chunks()
        return found

    def _load(self, table: str, rows: pa.Table, there: pa.Table | None) -> pa.Table:
        """Write the rows that are not there yet; return all as the table stores them."""
        where = (self.name, table)
        if there is not None:
            self.client.write(*where, rows.slice(there.num_rows))
            if self.random.random() < 0.3:
                self.client.persist(*where)
        else:
            self._create(where, rows)
        return rows.cast(_without_nulls(self.client.schema(*where)))

    def _create(self, where: tuple[str, str], rows: pa.Table) -> None:
        key = next((name for name in rows.schema.names if _is_key(rows, name)), None)
        state = self.random.choice(["files", "mixed", "buffered", "keyed"])
        if state == "keyed" and key is None:
            state = "mixed"
        self.states[state] += 1
        nanos = "timestamp[ns" in str(rows.schema)
        part = (
            [f"bucket({self.random.choice([1, 3])}, {key})"]
            if self.random.random() < 0.3 and key
            else None
        )
        self.client.create_table(
            *where,
            rows.schema,
            primary_key=[key] if key and state == "keyed" else None,
            partition_by=part,
            timestamp_unit="ns" if nanos else None,
        )
        if state == "keyed" and key:
            self._write_keyed(where, rows, key)
        elif state == "buffered":
            self.client.write(*where, rows)
        else:
            half = max(1, rows.num_rows // 3)
            for start in range(0, rows.num_rows, half):
                self.client.write(*where, rows.slice(start, half))
                if state == "files" or start + half < rows.num_rows:
                    self.client.persist(*where)

    def _write_keyed(self, where: tuple[str, str], rows: pa.Table, key: str) -> None:
        shift = [(i + 1) % rows.num_rows for i in range(rows.num_rows)]
        wrong = rows.take(shift).set_column(
            rows.schema.get_field_index(key), rows.schema.field(key), rows[key]
        )
        third = rows.num_rows // 3
        self.client.write(*where, wrong)
        gone = wrong.slice(third, third).select([key])
        self.client.delete(*where, gone)
        self.client.persist(*where)
        self.client.write(*where, rows.slice(0, 2 * third))
        if self.random.random() < 0.5:
            self.client.persist(*where)
        self.client.write(*where, rows.slice(2 * third))


def _is_key(rows: pa.Table, name: str) -> bool:
    column = rows[name]
    return (
        rows.num_rows > 3
        and any(has(column.type) for has in _KEYS)
        and column.null_count == 0
        and len(column.unique()) == rows.num_rows
    )


def _begins_with(rows: pa.Table | None, start: pa.Table) -> bool:
    return (
        rows is not None
        and rows.schema.equals(start.schema)
        and rows.num_rows >= start.num_rows
        and rows.slice(0, start.num_rows).equals(start)
    )


def _without_nulls(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(each.name, each.type) for each in schema])
