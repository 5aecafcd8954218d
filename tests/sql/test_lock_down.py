"""A statement can reach nothing but the tables that its caller may read, and change nothing."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pyarrow.parquet as pq
import pytest

from tests.drivers.daemon import Daemon
from tests.drivers.sql import ask, rows, workers_of
from tests.drivers.wire import Table, put

NOT_READ_ONLY = (
    "INSERT INTO {t} VALUES (1)",
    "UPDATE {t} SET n = 2",
    "DELETE FROM {t}",
    "MERGE INTO {t} USING (SELECT 1 AS n) s ON false WHEN NOT MATCHED THEN INSERT VALUES (1)",
    "TRUNCATE {t}",
    "CREATE TABLE mine AS SELECT 1",
    "CREATE TEMP TABLE mine (a INT)",
    "CREATE VIEW mine AS SELECT 1",
    "CREATE MACRO f(x) AS x + 1",
    "CREATE TYPE mood AS ENUM ('a')",
    "CREATE SEQUENCE one",
    "CREATE SECRET s (TYPE http, BEARER_TOKEN 'x')",
    "CREATE SCHEMA other",
    "CREATE INDEX i ON {t} (n)",
    "DROP VIEW {t}",
    "ALTER VIEW {t} RENAME TO other",
    "COMMENT ON VIEW {t} IS 'x'",
    "COPY (SELECT 1) TO '{file}'",
    "COPY {t} FROM '{file}'",
    "EXPORT DATABASE '{file}'",
    "IMPORT DATABASE '{file}'",
    "ATTACH '{file}' AS other",
    "ATTACH ':memory:' AS other",
    "DETACH ingester",
    "USE memory",
    "INSTALL httpfs",
    "FORCE INSTALL spatial FROM community",
    "LOAD '{file}'",
    "LOAD httpfs",
    "SET memory_limit = '100GB'",
    "SET GLOBAL enable_external_access = true",
    "RESET memory_limit",
    "PRAGMA memory_limit = '100GB'",
    "PRAGMA enable_profiling",
    "SET enable_profiling = 'json'",
    "SET log_query_path = '{file}'",
    "SET temp_directory = '{folder}'",
    "CALL pragma_version()",
    "CHECKPOINT",
    "VACUUM",
    "ANALYZE",
    "BEGIN",
    "COMMIT",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "DEALLOCATE p",
    "EXPLAIN INSERT INTO {t} VALUES (1)",
    "EXPLAIN ANALYZE DELETE FROM {t}",
    "EXPLAIN COPY (SELECT 1) TO '{file}'",
    "/* */ -- x\n DROP VIEW {t}",
    "SELECT 1; DROP VIEW {t}",
    "SELECT 1; SELECT 2",
    "",
    "-- nothing",
)
REACHING_OUT = (
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_blob('/etc/passwd')",
    "SELECT * FROM read_json('{file}')",
    "SELECT * FROM read_parquet('{store}/**/*.parquet')",
    "SELECT * FROM read_parquet('{secret}')",
    "SELECT * FROM parquet_metadata('{secret}')",
    "SELECT * FROM parquet_schema('{secret}')",
    "SELECT * FROM sniff_csv('/etc/passwd')",
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM '{secret}'",
    'SELECT * FROM "{secret}"',
    "SELECT * FROM glob('/etc/*')",
    "SELECT * FROM glob('{store}/*')",
    "SELECT * FROM read_csv('http://127.0.0.1:1/x')",
    "SELECT * FROM read_parquet('s3://bucket/x')",
    "SELECT * FROM 'https://127.0.0.1/x.parquet'",
    "SELECT * FROM query('SELECT * FROM read_text(''/etc/passwd'')')",
    "SELECT * FROM query_table('{secret}')",
    "SELECT * FROM sqlite_scan('{file}', 'x')",
    "SELECT * FROM duckdb_secrets(redact = false) UNION ALL SELECT * FROM read_text('/etc/passwd')",
    "SELECT (SELECT content FROM read_text('/proc/self/environ'))",
    "WITH x AS (SELECT * FROM read_text('/proc/self/cmdline')) SELECT * FROM x",
    "SELECT * FROM {t} WHERE n IN (SELECT size FROM read_text('/etc/passwd'))",
    "SELECT getenv('HOME')",
    "SELECT load_extension('{file}')",
    "EXPLAIN ANALYZE SELECT * FROM read_text('/etc/passwd')",
    "DESCRIBE SELECT * FROM read_csv('/etc/passwd')",
    "SUMMARIZE SELECT * FROM read_csv('/etc/passwd')",
)


@pytest.fixture(scope="module")
def places(shared: Daemon, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("locked")
    with fl.connect(shared.flight) as client:
        put(client, ("locked", "t"), pa.record_batch({"n": [1]}))
    secret = folder / "secret.parquet"
    pq.write_table(pa.table({"password": ["x"]}), secret)
    store = shared.data_dir / "store"
    return {
        "t": "locked.t",
        "file": str(folder / "file"),
        "folder": str(folder),
        "secret": str(secret),
        "store": str(store),
    }


@pytest.mark.parametrize("text", NOT_READ_ONLY)
def test_a_statement_that_does_not_only_read_is_refused_and_changes_nothing(
    client: fl.FlightClient, places: dict[str, str], text: str
) -> None:
    with pytest.raises(pa.ArrowInvalid, match=r"."):
        ask(client, text.format(**places))
    assert not Path(places["file"]).exists()
    assert rows(client, "SELECT n FROM locked.t") == [(1,)]


@pytest.mark.parametrize("text", REACHING_OUT)
def test_a_query_cannot_reach_files_networks_or_variables(
    client: fl.FlightClient, places: dict[str, str], text: str
) -> None:
    with pytest.raises((pa.ArrowInvalid, fl.FlightUnavailableError)) as caught:
        ask(client, text.format(**places))
    assert "root:" not in str(caught.value)
    assert "password" not in str(caught.value)


def test_a_worker_has_no_variables_of_the_daemon(client: fl.FlightClient, shared: Daemon) -> None:
    assert rows(client, "SELECT 1") == [(1,)]
    names = [
        entry.partition(b"=")[0].decode()
        for pid in workers_of(shared.pid)
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if entry
    ]
    allocators = {"ARROW_DEFAULT_MEMORY_POOL", "DUCKDB_JE_MALLOC_CONF"}
    assert set(names) <= {"PYTHONPATH", "PATH", "HOME", "LC_ALL"} | allocators
    assert "HOME" in names


def test_one_query_leaves_nothing_for_the_next(client: fl.FlightClient, table: Table) -> None:
    put(client, table, pa.record_batch({"n": [1]}))
    named = ".".join(table)
    assert rows(client, f"SELECT n FROM {named}") == [(1,)]
    found = rows(client, "SELECT view_name FROM duckdb_views() WHERE NOT internal")
    assert not [name for (name,) in found if str(name).startswith("__source")]
    with pytest.raises(pa.ArrowInvalid, match="does not exist"):
        ask(client, "SELECT * FROM __source_0")
