"""Copies into a daemon: every text, every kind of table, every failure."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ingester.cli.replicate import psycopg2_errors_once
from ingester.client import Client, ClientError, InvalidRequest, NotFound
from ingester.client.retry import NEVER
from ingester.postgres.connection import Stopped, ask, connect
from ingester.postgres.copy_stream import read_block, rows_at_most
from ingester.postgres.copying import CopiedTable, copy_table
from ingester.postgres.facts import TableFacts
from ingester.postgres.server_errors import SourceFailed
from ingester.postgres.snapshot import SourceSnapshot
from ingester.postgres.states import Shape, ShapeColumn
from ingester.postgres.types import ColumnType, ValueNotKept, column_type
from tests.drivers.daemon import Daemon
from tests.postgres.cluster import Cluster

NAMESPACE = "copied"
MEMORY_BYTES = 300_000_000
TEXTS = (
    *("", " ", "NULL", "\\N", "\\.", "\\", '"', '""', ",", "a,b", "\n", "\r", "\r\n", "a\n\\.\nb"),
    *("\ufeff", "\ufeffx", "é", "日本", "😀", "'", "\x01", "\x7f", '"\n",', "x" * 70_000),
)


@pytest.fixture
def daemon_client(shared: Daemon) -> Iterator[Client]:
    with Client(shared.flight) as client:
        yield client


def shape_of(facts: TableFacts) -> Shape:
    columns = (
        ShapeColumn(c.name, _name_here(c.name), column_type(c.base_oid, c.base_modifier))
        for c in facts.columns
    )
    return Shape(facts.name, facts.key, tuple(columns), full_identity=False)


def _name_here(name: str) -> str:
    return re.sub("^_", "x_", name)


def taken(dsn: str, stopped: Callable[[], bool] = lambda: False) -> Any:
    return SourceSnapshot.take(dsn, "copy", stopped)


def copied(
    snapshot: SourceSnapshot,
    client: Client,
    table: str,
    progress: Callable[[int, int, int | None], None] = lambda rows, nbytes, total: None,
) -> CopiedTable:
    [(oid,)] = ask(snapshot.connection, "SELECT %s::regclass::oid::bigint", f'public."{table}"')
    [facts] = snapshot.facts("", [oid])
    state = partial(bytes, f"{snapshot.lsn}", "ascii")
    shape = shape_of(facts)
    return copy_table(snapshot, facts, shape, client, NAMESPACE, "postgres:test", state, progress)


def rows_of(client: Client, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.query(NAMESPACE, table).to_pylist()
    return found


def test_every_text_arrives_as_it_is(cluster: Cluster, daemon_client: Client) -> None:
    connection = connect(cluster.dsn)
    with connection.cursor() as cursor:
        cursor.execute(
            'CREATE TABLE public.texts ("a ""b"", %" text PRIMARY KEY, _id text, "Ü" bytea,'
            " c char(3), n int)"
        )
        for number, text in enumerate(TEXTS):
            cursor.execute(
                "INSERT INTO public.texts VALUES (%s, %s, %s, %s, %s)",
                (text, text, text.encode(), text[:3], number),
            )
        cursor.execute("INSERT INTO public.texts VALUES ('all null', NULL, NULL, NULL, NULL)")
        # A row is a line, so an empty line is a row with an empty text.
        cursor.execute("CREATE TABLE public.lines (a text PRIMARY KEY)")
        cursor.execute('INSERT INTO public.lines SELECT "a ""b"", %" FROM public.texts')
        cursor.execute("CREATE TABLE public.nothing (a int PRIMARY KEY, b date)")
    connection.close()
    with taken(cluster.dsn) as snapshot:
        for table in ("texts", "lines", "nothing"):
            found = copied(snapshot, daemon_client, table)
            [(rows,)] = cluster.run(f"SELECT count(*) FROM {table}")
            assert found.rows == rows
        at = f"{snapshot.lsn}".encode()
    names = ('a "b", %', "x_id", "Ü", "c", "n")
    wanted = [
        dict(zip(names, (text, text, text.encode(), text[:3].ljust(3), n), strict=True))
        for n, text in enumerate(TEXTS)
    ]
    wanted.append({**dict.fromkeys(names), names[0]: "all null"})
    by_key = {row[names[0]]: row for row in rows_of(daemon_client, "texts")}
    assert by_key == {row[names[0]]: row for row in wanted}
    assert {row["a"] for row in rows_of(daemon_client, "lines")} == {*TEXTS, "all null"}
    nothing = daemon_client.query(NAMESPACE, "nothing")
    assert nothing.schema.types == [pa.int32(), pa.date32()]
    assert nothing.num_rows == 0
    assert daemon_client.checkpoint(NAMESPACE, "texts", "postgres:test").durable_state == at


def test_a_block_ends_where_a_row_does_and_nulls_do_not_make_a_large_batch() -> None:
    text = ColumnType(pa.string())
    one = Shape("t", (), (ShapeColumn("a", "a", text),), full_identity=False)
    assert read_block(b'\n""\n\xef\xbb\xbfx\n', one).to_pydict() == {"a": [None, "", "\ufeffx"]}
    assert read_block(b"\xef\xbb\xbfx\n\n", one).to_pydict() == {"a": ["\ufeffx", None]}
    decimals = tuple(ShapeColumn(f"{n}", f"{n}", ColumnType(pa.decimal128(38))) for n in range(999))
    wide = Shape("t", (), decimals, full_identity=False)
    block = b"".join([b"," * 998 + b"\n"] * rows_at_most(wide))
    assert len(block) < 2 << 20
    assert 15 << 20 < read_block(block, wide).nbytes < 20 << 20


def test_partitions_come_with_their_table_and_heirs_do_not(
    cluster: Cluster, daemon_client: Client
) -> None:
    cluster.run(
        "CREATE TABLE parted (a int, b int, PRIMARY KEY (a, b)) PARTITION BY RANGE (a)",
        "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (5)",
        "CREATE TABLE parted_2 PARTITION OF parted FOR VALUES FROM (5) TO (10)"
        " PARTITION BY RANGE (b)",
        "CREATE TABLE parted_2_1 PARTITION OF parted_2 FOR VALUES FROM (0) TO (9)",
        "INSERT INTO parted SELECT n, n % 3 FROM generate_series(0, 9) AS n",
        "ANALYZE parted",
        "CREATE TABLE parent (a int PRIMARY KEY)",
        "CREATE TABLE heir (c int) INHERITS (parent)",
        "INSERT INTO parent VALUES (1)",
        "INSERT INTO heir VALUES (2, 2)",
    )
    told: list[tuple[int, int, int | None]] = []
    with taken(cluster.dsn) as snapshot:
        # Later writes are not part of the snapshot.
        cluster.run("INSERT INTO parted VALUES (4, 8), (8, 8)", "DELETE FROM parent")
        assert copied(snapshot, daemon_client, "parted", lambda *how: told.append(how)).rows == 10
        assert copied(snapshot, daemon_client, "parent").rows == 1
    found = {(row["a"], row["b"]) for row in rows_of(daemon_client, "parted")}
    assert found == {(n, n % 3) for n in range(10)}
    assert rows_of(daemon_client, "parent") == [{"a": 1}]
    assert told[0] == (0, 0, 10)
    assert told[-1] == (10, 40, 10)


def test_rows_that_policies_hide_are_refused_and_not_left_out(
    cluster: Cluster, daemon_client: Client
) -> None:
    cluster.run(
        "CREATE TABLE hidden (a int PRIMARY KEY)",
        "INSERT INTO hidden VALUES (1)",
        "ALTER TABLE hidden ENABLE ROW LEVEL SECURITY",
        "CREATE ROLE reader LOGIN REPLICATION",
        "GRANT SELECT ON hidden TO reader",
    )
    with (
        taken(cluster.dsn.replace("user=bench", "user=reader")) as snapshot,
        pytest.raises(SourceFailed, match="row-level security"),
    ):
        copied(snapshot, daemon_client, "hidden")
    with pytest.raises(NotFound):
        rows_of(daemon_client, "hidden")


def test_a_value_that_is_not_kept_is_named_and_the_other_tables_are_copied(
    cluster: Cluster, daemon_client: Client
) -> None:
    cluster.run(
        "CREATE TABLE poison (a int, b text, d date, PRIMARY KEY (a, b))",
        "INSERT INTO poison SELECT n, 'x', '2026-11-26' FROM generate_series(1, 90000) AS n",
        "UPDATE poison SET d = 'infinity' WHERE a = 70000",
        "CREATE TABLE healthy (a int PRIMARY KEY)",
        "INSERT INTO healthy VALUES (1)",
    )
    with taken(cluster.dsn) as snapshot:
        with pytest.raises(ValueNotKept) as caught:
            copied(snapshot, daemon_client, "poison")
        assert "table 'poison', row a=70000, b=x, column 'd': 'infinity'" in str(caught.value)
        with pytest.raises(NotFound):
            rows_of(daemon_client, "poison")
        # Other tables are copied under the same snapshot, and no lock is held.
        cluster.run("UPDATE poison SET d = NULL", "ALTER TABLE poison ADD more int")
        assert copied(snapshot, daemon_client, "healthy").rows == 1
    with taken(cluster.dsn) as snapshot:
        assert copied(snapshot, daemon_client, "poison").rows == 90_000


@pytest.fixture(scope="module")
def large(cluster: Cluster) -> str:
    """A table of several blocks, so that a copy can be interrupted."""
    cluster.run(
        "CREATE TABLE large (a int PRIMARY KEY, b text)",
        "INSERT INTO large SELECT n, repeat(md5(n::text), 3000) FROM generate_series(1, 800) AS n",
    )
    return "large"


def test_a_copy_that_fails_on_the_way_leaves_the_table_as_it_was(
    cluster: Cluster, daemon_client: Client, large: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with daemon_client.copy(NAMESPACE, large, ["a"]) as copy:
        copy.write(pa.table({"a": pa.array([7], pa.int32())}))
        version = copy.finish("postgres:test", b"before")
    rows_so_far = [0]

    def stop(*_: object) -> None:
        pass  # The test stops the snapshot after the first rows.

    def lose(*_: object) -> None:
        cluster.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE backend_type = 'walsender'"
        )

    def fail(*_: object) -> None:
        raise KeyError(large)

    import psycopg2

    for act, raised in ((stop, Stopped), (lose, psycopg2.OperationalError), (fail, KeyError)):
        rows_so_far[0] = 0

        def progress(rows: int, *_: object, act: Callable[[], None] = act) -> None:
            rows_so_far[0] = rows
            if rows:
                act()

        def stopped(act: Callable[[], None] = act) -> bool:
            return act is stop and rows_so_far[0] > 0

        with (
            psycopg2_errors_once(),
            taken(cluster.dsn, stopped) as snapshot,
            pytest.raises(raised),
        ):
            copied(snapshot, daemon_client, large, progress)
        assert 0 < rows_so_far[0] < 800
        assert rows_of(daemon_client, large) == [{"a": 7}]
        kept = daemon_client.checkpoint(NAMESPACE, large, "postgres:test")
        assert kept.durable_state == b"before"
        assert cluster.run("SELECT slot_name FROM pg_replication_slots") == []
    with taken(cluster.dsn) as snapshot:
        assert copied(snapshot, daemon_client, large).table_version > version
    assert capfd.readouterr().err == ""
    assert len(rows_of(daemon_client, large)) == 800


def test_a_daemon_that_is_killed_ends_the_copy_at_the_source_too(
    cluster: Cluster, large: str, tmp_path: Path
) -> None:
    with Daemon.start(tmp_path / "d") as daemon, Client(daemon.flight, retry=NEVER) as client:
        with taken(cluster.dsn) as snapshot:
            with pytest.raises(ClientError):
                copied(snapshot, client, large, lambda rows, *_: daemon.kill() if rows else None)
            # The read has ended, no lock is held, and the connection is usable.
            cluster.run("ALTER TABLE large ALTER b SET NOT NULL")
            assert ask(snapshot.connection, "SELECT 1") == [(1,)]
        with (
            daemon.again() as daemon,
            Client(daemon.flight) as client,
            pytest.raises(NotFound),
        ):
            rows_of(client, large)


def _copy_in_a_process(dsn: str, flight: str, table: str, told: Any) -> None:
    with Client(flight) as client, taken(dsn) as snapshot:
        try:
            told.send(copied(snapshot, client, table))
        except InvalidRequest as exc:
            told.send(str(exc))
    [peak] = [line for line in Path("/proc/self/status").read_text().splitlines() if "HWM" in line]
    told.send(int(peak.split()[1]) << 10)


def test_large_rows_are_read_in_pieces_in_bounded_memory(
    cluster: Cluster, shared: Daemon, daemon_client: Client
) -> None:
    cluster.run(
        "CREATE TABLE rows_200k (a int PRIMARY KEY, b text)",
        "ALTER TABLE rows_200k ALTER b SET STORAGE EXTERNAL",
        "INSERT INTO rows_200k SELECT n, repeat(md5(n::text), 6250) FROM generate_series(1, 400) n",
        "CREATE TABLE rows_40m (a int PRIMARY KEY, b text, c bytea, d json, e char(9), f numeric)"
        " PARTITION BY RANGE (a)",
        "CREATE TABLE rows_40m_1 PARTITION OF rows_40m FOR VALUES FROM (1) TO (2)",
        "CREATE TABLE rows_40m_2 PARTITION OF rows_40m DEFAULT",
        "INSERT INTO rows_40m VALUES (1, repeat('é,\"', 10000000), '\\x00', '{}', 'x', 1),"
        " (2, repeat(E'\\n\"', 500000), decode(repeat('00ff', 5000000), 'hex'), '[]', 'y', 2),"
        " (3, 'small', NULL, ('\"' || repeat('é', 4500000) || '\"')::json, NULL, NULL),"
        " (4, 'small', '\\x00ff', '7', '', 4)",
        "CREATE TABLE rows_70m (a int PRIMARY KEY, b text)",
        "INSERT INTO rows_70m VALUES (5, repeat('x', 70000000)), (6, 'small')",
    )
    spawn = multiprocessing.get_context("spawn")
    said: dict[str, list[Any]] = {}
    for table in ("rows_200k", "rows_40m", "rows_70m"):
        told, its_end = spawn.Pipe(duplex=False)
        args = (cluster.dsn, shared.flight, table, its_end)
        process = spawn.Process(target=_copy_in_a_process, args=args, daemon=True)
        process.start()
        said[table] = [told.recv(), told.recv()]
        process.join()
    assert max(peak for _, peak in said.values()) < MEMORY_BYTES
    assert said["rows_200k"][0].rows == 400
    assert said["rows_40m"][0].rows == 4
    assert "table 'rows_70m', row a=5, column 'b': the row has 70000" in said["rows_70m"][0]
    assert "raise its flight.max_batch_bytes" in said["rows_70m"][0]
    # The values equal the server's, as Arrow types.
    rows = sorted(rows_of(daemon_client, "rows_40m"), key=lambda row: int(row["a"]))
    assert rows[0]["b"] == 'é,"' * 10_000_000
    assert tuple(rows[0].values())[2:] == (b"\0", "{}", "x" + 8 * " ", "1")
    assert (rows[1]["b"], rows[1]["c"]) == ('\n"' * 500_000, b"\0\xff" * 5_000_000)
    assert (rows[2]["c"], rows[2]["d"], rows[2]["e"]) == (None, f'"{"é" * 4_500_000}"', None)
    assert (rows[3]["b"], rows[3]["c"], rows[3]["e"]) == ("small", b"\0\xff", 9 * " ")
