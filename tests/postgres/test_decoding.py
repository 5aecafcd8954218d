"""Random transactions of a real server, decoded: the tables here are the source's after each."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from ingester.postgres.catalog import read_server, read_tables
from ingester.postgres.collector import Collector, Shape, ShapeColumn
from ingester.postgres.connection import as_bytes, connect
from ingester.postgres.pgoutput import Begin, Change, Commit, Relation, Truncate, parse
from ingester.postgres.types import column_type
from tests.bench.peers.installing import Missing
from tests.postgres.applying import Tables, apply_messages
from tests.postgres.cluster import Cluster, serve

TRANSACTIONS = 150
SEED = 33
PATIENCE_S = 60.0
TABLES = (
    # Keys that may stand twice until the end of a transaction.
    "CREATE TABLE moves (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, v int, big text)",
    "ALTER TABLE moves REPLICA IDENTITY FULL",
    "ALTER TABLE moves ALTER COLUMN big SET STORAGE EXTERNAL",
    # A key that is too large for its row.
    "CREATE TABLE plain (v int, id text PRIMARY KEY, big text)",
    "ALTER TABLE plain ALTER COLUMN big SET STORAGE EXTERNAL",
    "ALTER TABLE plain ALTER COLUMN id SET STORAGE EXTERNAL",
)
KEY = "CASE WHEN {0} < 5 THEN '{0}' ELSE lpad('{0}', 2200, 'k') END"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    try:
        with serve(tmp_path_factory.mktemp("postgres")) as running:
            yield running
    except Missing as exc:
        pytest.skip(f"no PostgreSQL here: {exc}")


def statement(random: Random) -> str:
    """A change of one of the tables; some of them fail."""
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
    """A transaction of some statements and savepoints; it fails where a key stands there twice."""
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
    """The tables here, by what the slot says."""

    def __init__(self, dsn: str, connection: Any) -> None:
        self._dsn = dsn
        server = read_server(connection)
        assert server.wal_level == "logical"
        shapes = {}
        for facts in read_tables(connection, "p"):
            columns = tuple(
                ShapeColumn(column.name, column.name, column_type(column))
                for column in facts.columns
            )
            shapes[facts.oid] = Shape(facts.name, facts.key, columns, facts.identity == "f")
        assert [shape.full_identity for shape in shapes.values()] == [True, False]
        self._collector = Collector(shapes)
        self.tables: Tables = {"moves": {}, "plain": {}}
        self.seen: set[str] = set()

    def read(self, random: Random) -> None:
        """Read what is there, and send some of it together."""
        # A session of older servers can decode a few times only.
        with contextlib.closing(connect(self._dsn)) as connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT data FROM pg_logical_slot_get_binary_changes('s', NULL, NULL,"
                " 'proto_version', '1', 'publication_names', 'p')"
            )
            messages = [bytes(data) for (data,) in cursor.fetchall()]
        for data in messages:
            message = parse(data)
            if isinstance(message, Relation):
                self._collector.relation(message)
            elif isinstance(message, Change):
                self.seen.add(data[:1].decode() + data[5:6].decode())
                self._collector.add(message)
            elif isinstance(message, Truncate):
                self.seen.add("T")
                for oid in message.relations:
                    self._collector.truncate(oid)
            elif isinstance(message, Commit):
                self._collector.commit(message.end_lsn)
                if random.random() < 0.3:
                    self._send()
            else:
                assert isinstance(message, Begin)
        self._send()

    def _send(self) -> None:
        apply_messages(self._collector.take(), self.tables)
        assert (self._collector.nbytes, self._collector.changes) == (0, 0)


def test_random_transactions_leave_what_the_source_has(cluster: Cluster) -> None:
    random = Random(SEED)
    cluster.run(*TABLES, "CREATE PUBLICATION p FOR TABLE moves, plain")
    cluster.run("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
    connection = connect(cluster.dsn)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SET search_path TO public")
        follower = Follower(cluster.dsn, connection)
        for _ in range(TRANSACTIONS // 10):
            for _ in range(10):
                load(connection, random)
            follower.read(random)
            for table in ("moves", "plain"):
                found = {
                    (row["id"], row["v"], row["big"]) for row in follower.tables[table].values()
                }
                assert found == set(cluster.run(f"SELECT id, v, big FROM public.{table}"))
        assert follower.seen == {"IN", "UN", "UK", "UO", "DK", "DO", "T"}
    finally:
        connection.close()


def streamed(stream: Any, last: bytes) -> list[bytes]:
    """What a slot streams, up to the change that has a text."""
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
    assert [change.rows()[1] for change in changes] == [
        (b"1", "café".encode()),
        (b"2", b"caf\xe9"),
        (b"3", b"the end"),
    ]
