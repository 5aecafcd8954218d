"""`--check` reports whether each table can be followed, with reasons, and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ingester.cli.exits import FAILED, UNREACHABLE, USAGE, CommandFailed
from ingester.cli.replicate import check_postgres
from ingester.postgres.options import Options
from tests.bench.peers.server import Server, unprivileged_user
from tests.drivers.waiting import until
from tests.postgres.cluster import SETTINGS as SETTINGS_OF_ALL
from tests.postgres.cluster import Cluster, serve_or_skip

SETTINGS = {"max_replication_slots": "3", "autovacuum": "off"}


def wanted(
    dsn: str,
    tables: tuple[str, ...] = (),
    *,
    publication: str = "ing",
    slot: str = "ing",
    renames: Mapping[str, str] | None = None,
) -> Options:
    """Return the options of a replication that a check needs."""
    return Options(dsn, "shop", tables, publication, slot, renames=renames or {})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with serve_or_skip(tmp_path_factory.mktemp("postgres"), settings=SETTINGS) as running:
        running.run(
            "CREATE ROLE reader LOGIN REPLICATION",
            "CREATE ROLE writer LOGIN",
            "CREATE DATABASE other",
            "CREATE TABLE orders (id int PRIMARY KEY, at timestamp)",
            "CREATE TABLE lines (id int)",
            "CREATE TABLE _jobs (id int PRIMARY KEY)",
            "CREATE VIEW seen AS SELECT 1",
            "CREATE SCHEMA sales",
            "CREATE TABLE sales.orders (id int PRIMARY KEY)",
        )
        yield running


def checked(options: Options, capsys: pytest.CaptureFixture[str]) -> tuple[int, Any, str]:
    """Return the exit code, the document, and the error message."""
    said, code = "", 0
    try:
        check_postgres(options, True)
    except CommandFailed as exc:
        said, code = str(exc), exc.exit_code
    text = capsys.readouterr().out
    return code, msgspec.json.decode(text) if text else None, said


def reasons(document: Any) -> dict[str, str]:
    return {t["source"]: t["reason"] for t in document["tables"] if not t["can_be_followed"]}


def everything(cluster: Cluster) -> list[tuple[Any, ...]]:
    """Return everything that a check could have created, and the number of transactions."""
    return cluster.run(
        "SELECT (SELECT array_agg(p::text) FROM pg_publication p),"
        " (SELECT array_agg(r::text) FROM pg_publication_rel r),"
        " (SELECT array_agg(s::text) FROM pg_replication_slots s),"
        " (SELECT array_agg(c.oid || c.relname || c.xmin::text) FROM pg_class c),"
        " txid_snapshot_xmax(txid_current_snapshot())"
    )


def test_a_check_says_what_could_be_followed_and_changes_nothing(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    before = everything(cluster)
    code, document, said = checked(wanted(cluster.dsn), capsys)
    assert (code, said) == (FAILED, "1 of 4 tables cannot be followed")
    assert reasons(document) == {"public.lines": "it has no primary key"}
    names = {table["source"]: table["table"] for table in document["tables"]}
    assert names["public._jobs"] == "x--5f-jobs"
    assert names["sales.orders"] == "sales.orders"
    assert document["problems"] == []
    assert document["would_run"][0].startswith("CREATE PUBLICATION ing FOR TABLE ONLY")
    assert "public.lines" not in document["would_run"][0]
    check_postgres(wanted(cluster.dsn, ("orders", "sales.orders")), False)
    lines = capsys.readouterr().out.splitlines()
    assert "public.orders as orders: can be followed" in lines
    assert lines[-1] == "all 2 tables can be followed"
    with pytest.raises(CommandFailed, match="1 of 4 tables cannot be followed"):
        check_postgres(wanted(cluster.dsn), False)
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("public.lines as lines: cannot be followed: it has no primary key")
    assert lines[at + 1] == "    helps: ALTER TABLE public.lines ADD PRIMARY KEY (…)"
    assert everything(cluster) == before


def test_a_check_tells_of_names_that_are_not_there_or_clash(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    renames = {"sales.orders": "orders", "public.gone": "x"}
    options = wanted(cluster.dsn, ("orders", "sales.orders", "seen", "missing"), renames=renames)
    code, document, said = checked(options, capsys)
    assert code == FAILED
    assert "table missing does not exist" in said
    assert "--rename public.gone: no such table or column" in said
    assert reasons(document) == {
        "public.orders": "sales.orders would also be named 'orders' here",
        "sales.orders": "public.orders would also be named 'orders' here",
        "public.seen": "it is a view",
    }
    assert checked(wanted(cluster.dsn, ("a..b",)), capsys)[0] == USAGE


def test_a_publication_of_somebody_else_that_breaks_writes_is_told_loudly(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.run("CREATE PUBLICATION ing FOR ALL TABLES")
    try:
        code, document, _ = checked(wanted(cluster.dsn), capsys)
        assert code == FAILED
        [lines] = [each for each in document["tables"] if each["source"] == "public.lines"]
        assert lines["breaks"].startswith("UPDATE and DELETE of public.lines fail at the source")
        assert document["would_run"] == []
        with pytest.raises(CommandFailed):
            check_postgres(wanted(cluster.dsn), False)
        assert "AT THE SOURCE: UPDATE and DELETE of public.lines fail" in capsys.readouterr().out
    finally:
        cluster.run("DROP PUBLICATION ing")


def test_rights_and_slots_that_are_missing_are_told_at_once(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    as_reader = cluster.dsn.replace("user=bench", "user=reader")
    code, document, said = checked(wanted(as_reader), capsys)
    assert code == FAILED
    assert "role 'reader' may not create it" in said
    assert set(reasons(document).values()) >= {"role 'reader' may not read it"}
    as_writer = cluster.dsn.replace("user=bench", "user=writer")
    assert "role 'writer' lacks REPLICATION" in checked(wanted(as_writer), capsys)[2]
    make = "SELECT pg_create_logical_replication_slot('{}', '{}')"
    try:
        cluster.run(make.format("decoding", "test_decoding"), make.format("here", "pgoutput"))
        before = everything(cluster)
        found = checked(wanted(cluster.dsn, slot="decoding"), capsys)
        assert "slot 'decoding' uses plugin 'test_decoding', not pgoutput" in found[2]
        elsewhere = cluster.dsn.replace("dbname=postgres", "dbname=other")
        found = checked(wanted(elsewhere, slot="here"), capsys)
        assert "slot 'here' belongs to database 'postgres', not 'other'" in found[2]
        # One slot is free and two are needed, or one if the stream's slot already exists.
        found = checked(wanted(cluster.dsn), capsys)
        assert "1 replication slots are free: one is needed for the stream" in found[2]
        assert found[1]["problems"][0]["helps"][0].startswith("SELECT slot_name, active")
        assert checked(wanted(cluster.dsn, ("orders",), slot="here"), capsys)[0] == 0
        assert everything(cluster) == before
    finally:
        cluster.run("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")


def test_names_that_the_server_cuts_and_commits_that_would_wait_are_told(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    found = checked(wanted(cluster.dsn, ("orders",), publication="p" * 64, slot="My Slot"), capsys)
    assert "expected 1 to 63 bytes" in found[2]
    assert "slot name 'My Slot': expected 1 to 63 of a-z, 0-9 and _" in found[2]
    reload = "SELECT pg_reload_conf()"
    for names, waits in (("FIRST 1 (near, *)", True), ("near, far", False)):
        cluster.run(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'", reload)
        try:
            # The setting reaches existing sessions late; a new session has it at once.
            until(partial(is_shown, cluster, names), "the setting", 10.0)
            code, _, said = checked(wanted(cluster.dsn, ("orders",)), capsys)
            assert ("commits at the source would wait" in said) == waits
            assert code == (FAILED if waits else 0)
        finally:
            cluster.run("ALTER SYSTEM RESET synchronous_standby_names", reload)


def is_shown(cluster: Cluster, names: str) -> bool:
    return cluster.run("SHOW synchronous_standby_names") == [(names,)]


def test_a_server_that_cannot_be_had_is_told_by_what_is_wrong(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    for change, said, exit_code in (
        (("user=bench", "user=nobody"), 'role "nobody" does not exist', FAILED),
        (("dbname=postgres", "dbname=nothing"), 'database "nothing" does not exist', FAILED),
        (("host=", "host=/nowhere"), "No such file or directory", UNREACHABLE),
    ):
        code, _, text = checked(wanted(cluster.dsn.replace(*change)), capsys)
        assert said in text
        assert code == exit_code
    for dsn in ("postgresql://u:se%cret@h/d", "password=secret x", "postgresql://u:p@secret@h/d"):
        code, _, text = checked(wanted(dsn), capsys)
        assert code == FAILED
        assert "cret" not in text
    code, _, text = checked(wanted(f"{cluster.dsn} password=secret options='-c x.y=1'"), capsys)
    assert (code, "secret" in text) == (FAILED, False)


def test_a_server_that_does_not_decode_and_its_standby_are_told(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve_or_skip(tmp_path, settings={"wal_level": "replica", "hot_standby": "on"}) as primary:
        primary.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION ing FOR TABLE t")
        code, document, said = checked(wanted(primary.dsn), capsys)
        assert (code, said) == (
            FAILED,
            "nothing can be followed: wal_level is replica, not logical",
        )
        assert document["problems"][0]["helps"][0] == "ALTER SYSTEM SET wal_level = logical"
        assert reasons(document) == {}
        # After a restart without a primary, the server stays in recovery, as a standby does.
        primary.end()
        place = Path(primary.dsn.split()[0].removeprefix("host="))
        (place / "data" / "standby.signal").touch()
        said_of = {**SETTINGS_OF_ALL, "wal_level": "replica", "unix_socket_directories": str(place)}
        arguments = [part for pair in said_of.items() for part in ("-c", "=".join(pair))]
        command: list[str | Path] = [
            primary.programs / "postgres",
            "-D",
            place / "data",
            *arguments,
        ]
        ready = "ready to accept read-only connections"
        with Server(command, ready, environment=primary.environment, user=unprivileged_user()):
            code, document, said = checked(wanted(primary.dsn), capsys)
            assert code == FAILED
            assert "the server is a standby" in said
            assert document["server"]["in_recovery"]
