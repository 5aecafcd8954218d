"""Connections pin the format of values and classify errors."""

from __future__ import annotations

import select
import shutil
import socket
import socketserver
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from ingester.postgres.catalog import read_slot
from ingester.postgres.connection import PINNED, ask, connect, source_errors, source_text
from ingester.postgres.server_errors import SourceFailed
from tests.postgres.cluster import Cluster, serve_or_skip

SETTINGS = {
    "max_replication_slots": "2",
    "max_slot_wal_keep_size": "1MB",
    "min_wal_size": "32MB",
    "max_wal_size": "32MB",
    "autovacuum": "off",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with serve_or_skip(tmp_path_factory.mktemp("postgres"), settings=SETTINGS) as running:
        running.run(
            "CREATE ROLE strange LOGIN SUPERUSER PASSWORD 'right horse'",
            "ALTER ROLE strange SET extra_float_digits = 0",
            "ALTER ROLE strange SET intervalstyle = 'iso_8601'",
            "ALTER ROLE strange SET search_path = nowhere",
            "CREATE ROLE reader LOGIN REPLICATION",
            "CREATE TABLE hidden (id int PRIMARY KEY)",
            "CREATE TABLE policed (id int PRIMARY KEY)",
            "INSERT INTO policed VALUES (1)",
            "ALTER TABLE policed ENABLE ROW LEVEL SECURITY",
            "GRANT SELECT ON policed TO reader",
        )
        yield running


@pytest.mark.parametrize("replication", [False, True])
def test_no_setting_of_role_database_or_dsn_changes_a_text(
    cluster: Cluster, replication: bool
) -> None:
    dsn = cluster.dsn.replace("user=bench", "user=strange")
    dsn += (
        " options='-c datestyle=german -c bytea_output=escape -c work_mem=77kB -c row_security=on'"
    )
    with closing(connect(dsn, replication=replication)) as connection:
        for name, value in PINNED.items():
            [(found,)] = ask(connection, f"SHOW {name}")
            assert found == value, name
        # Other settings in the DSN are unchanged.
        assert ask(connection, "SHOW work_mem") == [("77kB",)]
        [texts] = ask(
            connection,
            "SELECT '1 month 2 days'::interval::text, 0.1::float8::text, '\\x00ff'::bytea::text,"
            " '2026-11-26 01:02:03+01'::timestamptz::text, 'pg_class'::regclass::text",
        )
        assert texts == ("1 mon 2 days", "0.1", "\\x00ff", "2026-11-26 00:02:03+00", "pg_class")


def test_what_no_retry_helps_is_told_with_what_helps(cluster: Cluster) -> None:
    reader = connect(cluster.dsn.replace("user=bench", "user=reader"))
    owner = connect(cluster.dsn)
    stream = connect(cluster.dsn, replication=True)
    make = "SELECT pg_create_logical_replication_slot('{}', 'pgoutput')"

    def begin(slot: str, connection: Any = stream) -> None:
        with source_errors():
            options = {"proto_version": "1", "publication_names": "gone"}
            connection.cursor().start_replication(slot, decode=False, options=options)

    found: list[tuple[Callable[[], Any], str, str]] = [
        (lambda: ask(reader, "SELECT * FROM public.hidden"), "42501", "GRANT SELECT"),
        (lambda: ask(reader, "SELECT * FROM public.policed"), "42501", "BYPASSRLS"),
        (lambda: begin("missing"), "42704", "--resync-all"),
    ]
    for act, sqlstate, help_ in found:
        with pytest.raises(SourceFailed) as caught:
            act()
        assert (caught.value.sqlstate, caught.value.permanent) == (sqlstate, True)
        assert help_ in " ".join(caught.value.helps)
    ask(owner, make.format("one"))
    ask(owner, make.format("two"))
    with pytest.raises(SourceFailed, match="all replication slots are in use") as caught:
        ask(owner, make.format("three"))
    assert caught.value.permanent
    assert "pg_drop_replication_slot" in " ".join(caught.value.helps)
    # Another process reads the slot; this error is temporary.
    begin("one")
    second = connect(cluster.dsn, replication=True)
    with pytest.raises(SourceFailed, match="active") as caught:
        begin("one", second)
    assert not caught.value.permanent
    stream.close()
    second.close()
    # The server discards log that the slot needs.
    for _ in range(4):
        cluster.run(
            "CREATE TABLE noise AS SELECT repeat('x', 2000) AS t FROM generate_series(1, 5000)",
            "DROP TABLE noise",
            "SELECT pg_switch_wal()",
            "CHECKPOINT",
        )
    assert read_slot(owner, "two").lost
    lost = connect(cluster.dsn, replication=True)
    with pytest.raises(SourceFailed) as caught:
        begin("two", lost)
    assert (caught.value.sqlstate, caught.value.permanent) == ("55000", True)
    assert "--resync-all" in caught.value.helps[0]
    for connection in (reader, owner, lost):
        connection.close()
    cluster.run("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")


def test_what_passes_is_left_to_a_retry(cluster: Cluster) -> None:
    victim = connect(cluster.dsn)
    [(pid,)] = ask(victim, "SELECT pg_backend_pid()")
    cluster.run(f"SELECT pg_terminate_backend({pid})")
    with pytest.raises(psycopg2.OperationalError):
        ask(victim, "SELECT 1")
    with pytest.raises(psycopg2.OperationalError):
        ask(victim, "SELECT 1")  # A second query, on the closed connection.
    with pytest.raises(psycopg2.OperationalError, match="No such file"):
        connect("host=/nowhere dbname=x")


def test_a_wrong_password_is_told_without_it_and_is_permanent(cluster: Cluster) -> None:
    place = Path(cluster.dsn.split()[0].removeprefix("host="))
    hba = place / "data" / "pg_hba.conf"
    before = hba.read_text()
    try:
        hba.write_text(f"local all strange scram-sha-256\nlocal all reader reject\n{before}")
        cluster.run("SELECT pg_reload_conf()")
        strange = cluster.dsn.replace("user=bench", "user=strange")
        for password in ("wrong staple", ""):
            with pytest.raises(SourceFailed) as caught:
                connect(f"{strange} password='{password}'")
            assert caught.value.permanent
            assert caught.value.sqlstate == "28P01"
            assert "staple" not in str(caught.value)
            assert "staple" not in repr(caught.value.__context__)
        with closing(connect(f"{strange} password='right horse'")) as connection:
            assert ask(connection, "SELECT 1") == [(1,)]
        with pytest.raises(SourceFailed, match=r"pg_hba\.conf rejects") as caught:
            connect(cluster.dsn.replace("user=bench", "user=reader"))
        assert caught.value.sqlstate == "28000"
    finally:
        hba.write_text(before)
        cluster.run("SELECT pg_reload_conf()")


class _Pooler(socketserver.BaseRequestHandler):
    """A pooler that drops the replication parameter and forwards everything else."""

    server_path = ""

    def handle(self) -> None:
        """Forward the bytes of one client, and the server's answers."""
        client: socket.socket = self.request
        [length] = struct.unpack(">i", client.recv(4, socket.MSG_WAITALL))
        startup = client.recv(length - 4, socket.MSG_WAITALL)
        startup = startup.replace(b"replication\0database\0", b"")
        with socket.socket(socket.AF_UNIX) as server:
            server.connect(self.server_path)
            server.sendall(struct.pack(">i", len(startup) + 4) + startup)
            ends = {client: server, server: client}
            while True:
                for end in select.select(list(ends), [], [])[0]:
                    if not (data := end.recv(1 << 16)):
                        return
                    ends[end].sendall(data)


def test_a_pooler_that_drops_the_wish_to_replicate_is_told(cluster: Cluster) -> None:
    real = cluster.dsn.split()[0].removeprefix("host=")
    folder = tempfile.mkdtemp(prefix="pool-")  # Socket paths are limited to 107 bytes.
    _Pooler.server_path = f"{real}/.s.PGSQL.5432"
    with socketserver.ThreadingUnixStreamServer(f"{folder}/.s.PGSQL.5432", _Pooler) as pooler:
        pooler.daemon_threads = True
        threading.Thread(target=pooler.serve_forever, daemon=True).start()
        dsn = cluster.dsn.replace(f"host={real}", f"host={folder}")
        with closing(connect(dsn)) as connection:
            assert ask(connection, "SELECT 1") == [(1,)]
        with pytest.raises(SourceFailed, match="a pooler does not support replication") as caught:
            connect(dsn, replication=True)
        assert caught.value.helps == ("name the server itself in the DSN, not the pooler",)
        pooler.shutdown()
    shutil.rmtree(folder)


def test_a_source_is_told_without_secrets() -> None:
    assert source_text("postgresql://u:se%40cret@h:5433/d") == "host=h port=5433 dbname=d user=u"
    assert source_text("host=h password=secret sslpassword=x dbname=d") == "host=h dbname=d"
