"""Decoded transactions of a real server: after each, the tables equal the source's."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest

from ingester.postgres.catalog import read_tables
from ingester.postgres.collector import Collector
from ingester.postgres.connection import as_bytes, ask, connect
from ingester.postgres.pgoutput import (
    BeginMessage,
    Change,
    CommitMessage,
    Relation,
    Truncate,
    parse,
)
from ingester.postgres.states import Shape, ShapeColumn
from ingester.postgres.types import column_type
from tests.postgres.applying import Row, Tables, apply_messages
from tests.postgres.cluster import Cluster
from tests.postgres.messages import cells_of

TRANSACTIONS = 150
SEED = 33
PATIENCE_S = 60.0
TABLES = (
    # Keys may be duplicated until the end of a transaction.
    "CREATE TABLE moves (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, v int, big text)",
    "ALTER TABLE moves REPLICA IDENTITY FULL",
    "ALTER TABLE moves ALTER COLUMN big SET STORAGE EXTERNAL",
    # The key is too large to be stored in its row.
    "CREATE TABLE plain (v int, id text PRIMARY KEY, big text)",
    "ALTER TABLE plain ALTER COLUMN big SET STORAGE EXTERNAL",
    "ALTER TABLE plain ALTER COLUMN id SET STORAGE EXTERNAL",
)
KEY = "CASE WHEN {0} < 5 THEN '{0}' ELSE lpad('{0}', 2200, 'k') END"


def statement(random: Random) -> str:
    """Draw a change of one of the tables; some changes fail."""
    one, other, value = random.randint(1, 9), random.randint(1, 9), random.randint(1, 99)
    big = random.choice(["'s'", f"repeat('{value}', 3000)"])
    table, key = random.choice([("moves", "{}"), ("plain", KEY)])
    one_key, other_key = key.format(one), key.format(other)
    kinds = [
        f"INSERT INTO {table} (id, v, big) VALUES ({one_key}, {value}, {big})",
        f"UPDATE {table} SET id = {one_key} WHERE id = {other_key}",
        f"UPDATE {table} SET v = {value} WHERE id = {one_key}",
        f"UPDATE {table} SET big = {big} WHERE id = {one_key}",
        f"DELETE FROM {table} WHERE id = {one_key}",
        "UPDATE moves SET id = id + 1",
        f"UPDATE moves SET id = {one} + {other} - id WHERE id IN ({one}, {other})",
        f"DELETE FROM moves a USING moves b WHERE a.id = b.id AND a.ctid < b.ctid AND {value} > 20",
    ]
    return f"TRUNCATE {table}" if random.random() < 0.03 else random.choice(kinds)


def load(connection: Any, random: Random) -> None:
    """Run a transaction of some statements and savepoints; duplicate keys make it fail."""
    import psycopg2

    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        try:
            for _ in range(random.randint(1, 8)):
                cursor.execute("SAVEPOINT s")
                try:
                    cursor.execute(statement(random))
                    if random.random() < 0.1:
                        cursor.execute("ROLLBACK TO SAVEPOINT s")
                except psycopg2.Error:
                    cursor.execute("ROLLBACK TO SAVEPOINT s")
            cursor.execute("COMMIT")
        except psycopg2.Error:
            cursor.execute("ROLLBACK")


class Follower:
    """Tables rebuilt from a slot's stream; their columns come from Relation messages."""

    def __init__(self, cluster: Cluster, name: str, tables: str) -> None:
        """Publish tables, with changes of partitions as changes of the root."""
        self._cluster, self._name = cluster, name
        cluster.run(
            f"CREATE PUBLICATION {name} FOR TABLE {tables} WITH (publish_via_partition_root)",
            f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')",
        )
        with contextlib.closing(connect(cluster.dsn)) as connection:
            self._keys = {facts.oid: facts.key for facts in read_tables(connection, name)}
        self._shapes: dict[int, Shape] = {}
        self._collector = Collector(self._shapes)
        self._tables: Tables = {table.strip(): {} for table in tables.split(",")}
        self.seen: set[str] = set()

    def read(self, random: Random) -> None:
        """Read the available changes, send some of them together, and compare with the source."""
        # A new session each time, because sessions of older servers can decode only a few times.
        with contextlib.closing(connect(self._cluster.dsn)) as connection:
            messages = ask(
                connection,
                "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL,"
                " 'proto_version', '1', 'publication_names', %s)",
                self._name,
                self._name,
            )
            for (data,) in messages:
                self._take(bytes(data), random)
            self._send()
            for table, rows in self._tables.items():
                expected = ask(connection, f"SELECT to_jsonb(t) FROM public.{table} t")
                assert _sorted(rows.values()) == _sorted(row for (row,) in expected)

    def _take(self, data: bytes, random: Random) -> None:
        message = parse(data)
        if isinstance(message, Relation):
            columns = tuple(
                ShapeColumn(name, name, column_type(oid, modifier))
                for name, oid, modifier in message.columns
            )
            # Relation messages also describe partitions, which are followed by their root.
            if key := self._keys.get(message.oid):
                full = message.identity == "f"
                self._shapes[message.oid] = Shape(message.name, key, columns, full)
            self._collector.relation(message)
        elif isinstance(message, Change):
            self.seen.add(data[:1].decode() + data[5:6].decode())
            self._collector.add(message)
        elif isinstance(message, Truncate):
            self.seen.add("T")
            for oid in message.relations:
                self._collector.truncate(oid)
        elif isinstance(message, CommitMessage):
            self._collector.commit(message.end_lsn)
            if random.random() < 0.3:
                self._send()
        else:
            assert isinstance(message, BeginMessage)

    def _send(self) -> None:
        apply_messages(self._collector.take(), self._tables)
        assert (self._collector.nbytes, self._collector.changes) == (0, 0)


def _sorted(rows: Iterable[Row]) -> list[list[tuple[str, object]]]:
    """Sort rows and leave out their null values."""
    return sorted(sorted((n, v) for n, v in row.items() if v is not None) for row in rows)


def test_random_transactions_leave_what_the_source_has(cluster: Cluster) -> None:
    random = Random(SEED)
    cluster.run(*TABLES)
    follower = Follower(cluster, "random", "moves, plain")
    with contextlib.closing(connect(cluster.dsn)) as connection:
        with connection.cursor() as cursor:
            cursor.execute("SET search_path TO public")
        for _ in range(TRANSACTIONS // 10):
            for _ in range(10):
                load(connection, random)
            follower.read(random)
    assert follower.seen == {"IN", "UN", "UK", "UO", "DK", "DO", "T"}


FULL = "REPLICA IDENTITY FULL"
STORIES: dict[str, list[str]] = {
    # Each table is named after its story; each string is one transaction.
    "a_column_is_added_between_changes": [
        "CREATE TABLE {} (id int PRIMARY KEY, v text)",
        "BEGIN; INSERT INTO {} VALUES (1, 'a'); ALTER TABLE {} ADD c int;"
        " INSERT INTO {} VALUES (2, 'b', 5); UPDATE {} SET c = 7 WHERE id = 1; COMMIT",
    ],
    "a_column_is_dropped_between_whole_rows": [
        "CREATE TABLE {} (id int PRIMARY KEY, v text, c int)",
        f"ALTER TABLE {{}} {FULL}",
        "BEGIN; INSERT INTO {} VALUES (1, 'a', 1), (2, 'b', 2); ALTER TABLE {} DROP c;"
        " UPDATE {} SET v = v || '!'; DELETE FROM {} WHERE id = 1; COMMIT",
    ],
    "keys_move_before_and_after_a_column_comes": [
        "CREATE TABLE {} (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, v text)",
        f"ALTER TABLE {{}} {FULL}",
        "BEGIN; INSERT INTO {} VALUES (1, 'a'), (2, 'b'); UPDATE {} SET id = 3 - id;"
        " SET CONSTRAINTS ALL IMMEDIATE; ALTER TABLE {} ADD c int DEFAULT 9;"
        " INSERT INTO {} VALUES (3, 'c', 5); UPDATE {} SET id = id + 1, c = c + 1; COMMIT",
    ],
    "an_identity_changes_within_a_transaction": [
        "CREATE TABLE {} (id int PRIMARY KEY, v text)",
        f"BEGIN; INSERT INTO {{}} VALUES (1, 'a'), (2, 'b'); ALTER TABLE {{}} {FULL};"
        " UPDATE {} SET v = v || '!', id = id + 5; DELETE FROM {} WHERE id = 6;"
        " ALTER TABLE {} REPLICA IDENTITY DEFAULT; UPDATE {} SET id = id + 1; COMMIT",
    ],
    "partitions_have_their_own_order_of_columns": [
        "CREATE TABLE {} (id int, r int, v text, PRIMARY KEY (r, id)) PARTITION BY RANGE (r)",
        "CREATE TABLE {}_1 PARTITION OF {} FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE {}_2 (gone int, v text, r int NOT NULL, id int NOT NULL)",
        "ALTER TABLE {}_2 DROP gone",
        "ALTER TABLE {} ATTACH PARTITION {}_2 FOR VALUES FROM (10) TO (20)",
        f"ALTER TABLE {{}} {FULL}; ALTER TABLE {{}}_1 {FULL}; ALTER TABLE {{}}_2 {FULL}",
        "INSERT INTO {} VALUES (1, 1, 'a'), (2, 11, repeat('b', 9000))",
        "BEGIN; UPDATE {} SET r = r - 10 WHERE r > 10; UPDATE {} SET r = 12 WHERE id = 1;"
        " INSERT INTO {} VALUES (3, 12, 'c'); UPDATE {} SET v = v || '!'; COMMIT",
        "DELETE FROM {} WHERE id = 2",
    ],
    "a_table_is_written_anew_by_the_server": [
        "CREATE TABLE {} (id int PRIMARY KEY, v text, n int)",
        "INSERT INTO {} VALUES (1, 'a', 1), (2, repeat('b', 9000), 2)",
        "VACUUM FULL {}",
        "BEGIN; UPDATE {} SET n = 5; ALTER TABLE {} ALTER n TYPE bigint;"
        " UPDATE {} SET n = n * 2 WHERE id = 1; COMMIT",
    ],
    "a_transaction_is_prepared": [
        "CREATE TABLE {} (id int PRIMARY KEY, v text)",
        "BEGIN; INSERT INTO {} VALUES (1, 'a'); PREPARE TRANSACTION 'p'",
        "INSERT INTO {} VALUES (2, 'b')",
        "COMMIT PREPARED 'p'",
    ],
    "many_rows_are_shifted": [
        "CREATE TABLE {} (id int PRIMARY KEY DEFERRABLE, v text)",
        f"ALTER TABLE {{}} {FULL}",
        "INSERT INTO {} SELECT i, repeat(i::text, i % 50) FROM generate_series(1, 5000) i",
        "UPDATE {} SET id = id + 1",
        "UPDATE {} SET id = 5003 - id",
    ],
}


@pytest.mark.parametrize("story", STORIES)
def test_the_tables_are_the_sources_when(cluster: Cluster, story: str) -> None:
    statements = [statement.replace("{}", f"public.{story}") for statement in STORIES[story]]
    made = [at for at, each in enumerate(statements) if each.startswith(("CREATE", "ALTER"))]
    cluster.run(*statements[: made[-1] + 1])
    follower = Follower(cluster, story, story)
    cluster.run(*statements[made[-1] + 1 :])
    follower.read(Random(SEED))
    assert follower.seen


def streamed(stream: Any, last: bytes) -> list[bytes]:
    """Read the stream until a change contains the text, and return all messages."""
    found: list[bytes] = []
    while not found or last not in found[-1]:
        message = stream.read_message()
        if message is None:
            ready, _, _ = select.select([stream], [], [], PATIENCE_S)
            assert ready, "the stream says nothing more"
        else:
            found.append(message.payload)
    return found


def test_bytes_that_are_no_utf8_end_no_stream(cluster: Cluster) -> None:
    cluster.run("CREATE DATABASE bytes ENCODING 'SQL_ASCII' TEMPLATE template0")
    dsn = cluster.dsn.replace("dbname=postgres", "dbname=bytes")
    plain, streaming = connect(dsn), connect(dsn, replication=True)
    try:
        as_bytes(plain)
        as_bytes(streaming)
        with plain.cursor() as cursor, streaming.cursor() as stream:
            cursor.execute("CREATE TABLE public.t (id int PRIMARY KEY, v text)")
            cursor.execute("CREATE PUBLICATION p FOR TABLE public.t")
            stream.execute("CREATE_REPLICATION_SLOT b TEMPORARY LOGICAL pgoutput NOEXPORT_SNAPSHOT")
            cursor.execute(b'ALTER TABLE public.t RENAME v TO "caf\xe9"')
            cursor.execute(b"INSERT INTO public.t VALUES (1, 'caf\xc3\xa9'), (2, 'caf\xe9')")
            cursor.execute("INSERT INTO public.t VALUES (3, 'the end')")
            options = {"proto_version": "1", "publication_names": "p"}
            stream.start_replication("b", decode=False, options=options)
            messages = [parse(data) for data in streamed(stream, b"the end")]
    finally:
        streaming.close()
        plain.close()
    [relation] = [each for each in messages if isinstance(each, Relation)]
    assert relation.columns[1].name == "caf\\xe9"
    changes = [each for each in messages if isinstance(each, Change)]
    assert [cells_of(change)[1] for change in changes] == [
        (b"1", "café".encode()),
        (b"2", b"caf\xe9"),
        (b"3", b"the end"),
    ]
