"""A comparison finds all differences, and does not report changes in transit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from ingester.client import Client
from ingester.postgres.catalog import read_server, read_tables
from ingester.postgres.connection import connect
from ingester.postgres.facts import ColumnFacts
from ingester.postgres.options import Names
from ingester.postgres.states import (
    KeptColumn,
    ReplicaState,
    SlotPlace,
    decode_state,
    encode_state,
    partition_of,
)
from ingester.postgres.types import ColumnType, arrow_values, column_type
from ingester.postgres.verify.differences import TableVerdict, all_equal
from ingester.postgres.verify.verifying import NothingToCompare, VerifyPlan, verify
from tests.cli.conftest import check_refused, run_command
from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until
from tests.postgres.cluster import Cluster, serve_or_skip
from tests.postgres.replicating import replicating

ODD = '"ü %s {0} ""q"""'
LOAD_S = int(os.environ.get("INGESTER_TEST_PGBENCH_S", "5"))
FAR = 1 << 60
"""A position in the log that no test reaches."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with serve_or_skip(tmp_path_factory.mktemp("postgres")) as running:
        running.run("CREATE PUBLICATION p FOR ALL TABLES")
        yield running


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with (
        Daemon.start(tmp_path_factory.mktemp("daemon") / "d") as daemon,
        Client(daemon.flight) as connected,
    ):
        yield connected


@dataclass
class Copied:
    """Tables of a source copied into a namespace by reads and writes."""

    cluster: Cluster
    client: Client
    namespace: str
    policies: dict[str, Any] = field(default_factory=dict)

    def copy(self, table: str, from_lsn: int = FAR, publication: str = "p") -> None:
        """Copy all rows of a table and store the matching state."""
        connection = connect(self.cluster.dsn)
        try:
            server = read_server(connection)
            published = read_tables(connection, publication)
            [facts] = [each for each in published if each.name == table]
            columns = tuple(
                KeptColumn(c.name, c.name, str(self.kind(c).arrow), self.kind(c).policy)
                for c in facts.sent_columns
            )
            rows = arrow_rows(connection, table, facts.sent_columns, self.kind)
        finally:
            connection.close()
        schema = rows.schema
        self.client.create_table(self.namespace, table, schema, primary_key=list(facts.key))
        if rows.num_rows:
            self.client.write(self.namespace, table, rows)
        place = SlotPlace(server.system_identifier, server.database, "ingester", 1)
        state = ReplicaState(place, publication, facts, columns, from_lsn)
        self.put(table, state)

    def kind(self, column: ColumnFacts) -> ColumnType:
        return column_type(
            column.base_oid, column.base_modifier, self.policies.get(column.name, "refuse")
        )

    def put(self, table: str, state: ReplicaState) -> None:
        self.client.put_checkpoint(self.namespace, table, partition_of("o"), encode_state(state))

    def state(self, table: str) -> ReplicaState:
        stored = self.client.checkpoint(self.namespace, table, partition_of("o")).state
        assert stored is not None
        return decode_state(stored)

    def verify(
        self, *tables: str, patience_s: float = 5.0, origin: str = "", user: str = "bench"
    ) -> dict[str, TableVerdict]:
        dsn = f"{self.cluster.dsn} user={user}"
        plan = VerifyPlan(dsn, self.namespace, origin, Names(), tables, patience_s)
        return {each.table: each for each in verify(plan, self.client)}


def arrow_rows(connection: Any, table: str, columns: Any, kind: Any) -> pa.Table:
    """Return a table's rows, read as the replicator reads texts."""
    import psycopg2.extensions
    from psycopg2 import sql

    as_sent = psycopg2.extensions.new_type(
        tuple(c.type_oid for c in columns), "AS_SENT", lambda text, cursor: text
    )
    with connection.cursor() as cursor:
        psycopg2.extensions.register_type(as_sent, cursor)
        names = sql.SQL(", ").join(sql.Identifier(c.name) for c in columns)
        cursor.execute(sql.SQL("SELECT {} FROM public.{}").format(names, sql.Identifier(table)))
        rows = cursor.fetchall()
    arrays = [arrow_values(kind(c), [row[at] for row in rows]) for at, c in enumerate(columns)]
    return pa.table(dict(zip([c.name for c in columns], arrays, strict=True)))


def told(verdict: TableVerdict) -> set[tuple[str, str, str | None, str | None]]:
    """Return the rows that a verdict names: key, fault or column, and both values."""
    found: set[tuple[str, str, str | None, str | None]] = set()
    for row in verdict.rows:
        key = ",".join(str(part) for part in row.key.values())
        if row.fault != "values":
            found.add((key, row.fault, None, None))
        for each in row.columns:
            found.add((key, each.column, each.source, each.copy))
    return found


def test_each_difference_is_named_by_key_and_column(cluster: Cluster, client: Client) -> None:
    rows = 5_000
    cluster.run(
        "CREATE TABLE planted (part text, id int, a text, n numeric(12,3), t timestamptz,"
        f" f float8, y bytea, o bool, {ODD} text, PRIMARY KEY (id, part))",
        "INSERT INTO planted SELECT E'p\\\\\\t' || i % 3, i, 'a' || i, i / 7.0,"
        " '2026-11-26 10:00:00+01'::timestamptz + i * interval '1 s', i / 3.0, decode(md5('' ||"
        f" i), 'hex'), i % 2 = 0, 'w' || i FROM generate_series(1, {rows}) i",
        "UPDATE planted SET f = 'NaN', a = NULL WHERE id = 1000",
        "UPDATE planted SET f = '-Infinity', a = '' WHERE id = 1001",
        "UPDATE planted SET a = repeat('long ', 50) WHERE id IN (11, 12)",
    )
    copied = Copied(cluster, client, "planted")
    copied.copy("planted")
    verdict = copied.verify("planted")["planted"]
    assert (verdict.verdict, verdict.source_rows, verdict.copy_rows) == ("equal", rows, rows)

    found = client.query("planted", "planted").to_pylist()
    here = {row["id"]: row for row in found}

    def change(id_: int, **values: object) -> None:
        client.write("planted", "planted", pa.Table.from_pylist([{**here[id_], **values}], schema))

    schema = client.schema("planted", "planted")
    key = {"id": [1], "part": [here[1]["part"]]}
    client.delete("planted", "planted", key)
    change(9, id=9001)
    change(3, a="a4")
    change(4, a="a3")
    change(5, a="")
    change(6, t=here[6]["t"].replace(microsecond=1))
    change(7, f=-0.0)
    change(8, n=here[8]["n"].copy_abs() * 0)
    change(10, o=None)
    change(11, a="long " * 50 + "x")
    cluster.run(
        "UPDATE planted SET a = NULL WHERE id = 5",
        "UPDATE planted SET f = 0 WHERE id = 7",
        "UPDATE planted SET y = '' WHERE id = 13",
        f"UPDATE planted SET {ODD} = '' WHERE id = 15",
        "UPDATE planted SET id = 7777 WHERE id = 14",
    )
    verdict = copied.verify("planted")["planted"]
    assert (verdict.verdict, verdict.differing, verdict.more) == ("differs", 14, False)
    long = ("long " * 50)[:200] + "… ({} bytes)"
    assert told(verdict) == {
        ("1,p\\\t1", "missing", None, None),
        ("9001,p\\\t0", "extra", None, None),
        ("3,p\\\t0", "a", "a3", "a4"),
        ("4,p\\\t1", "a", "a4", "a3"),
        ("5,p\\\t2", "a", None, ""),
        ("6,p\\\t0", "t", "2026-11-26 09:00:06+00", "2026-11-26 09:00:06.000001+00"),
        ("7,p\\\t1", "f", "0.0", "-0.0"),
        ("8,p\\\t2", "n", "1.143", "0.000"),
        ("10,p\\\t1", "o", "t", None),
        ("11,p\\\t2", "a", long.format(250), long.format(251)),
        ("13,p\\\t1", "y", "\\x", "\\x" + here[13]["y"].hex()),
        ("14,p\\\t2", "extra", None, None),
        ("15,p\\\t0", 'ü %s {0} "q"', "", "w15"),
        ("7777,p\\\t2", "missing", None, None),
    }


def test_rows_that_came_without_a_change_of_theirs_are_found(
    cluster: Cluster, client: Client
) -> None:
    cluster.run(
        "CREATE TYPE colour AS ENUM ('red', 'green')",
        "CREATE TABLE widened (id int PRIMARY KEY, c colour)",
        "INSERT INTO widened SELECT i, CASE WHEN i % 100 = 0 THEN 'red' ELSE 'green' END::colour"
        " FROM generate_series(1, 3000) i",
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (100)",
        "INSERT INTO parts SELECT generate_series(1, 50)",
        "CREATE TABLE parts_2 (id int PRIMARY KEY)",
        "INSERT INTO parts_2 VALUES (150), (151)",
        "CREATE TABLE twice (id int PRIMARY KEY, v text)",
        "INSERT INTO twice VALUES (1, 'x'), (2, 'y')",
        "CREATE PUBLICATION via_root FOR TABLE parts WITH (publish_via_partition_root)",
    )
    copied = Copied(cluster, client, "widened")
    for table in ("widened", "twice"):
        copied.copy(table)
    copied.copy("parts", publication="via_root")
    tables = ("widened", "parts", "twice")
    assert {each.verdict for each in copied.verify(*tables).values()} == {"equal"}

    cluster.run(
        "ALTER TABLE widened ADD COLUMN nothing text",
        "ALTER TYPE colour RENAME VALUE 'red' TO 'crimson'",
        "ALTER TABLE parts ATTACH PARTITION parts_2 FOR VALUES FROM (100) TO (200)",
    )
    found = copied.verify(*tables)
    # A column with only nulls is no difference; renamed labels in old rows are.
    assert (found["widened"].differing, found["twice"].verdict) == (30, "equal")
    assert {each[1:] for each in told(found["widened"])} == {("c", "crimson", "red")}
    assert len(found["widened"].rows) == 20
    assert told(found["parts"]) == {
        ("150", "missing", None, None),
        ("151", "missing", None, None),
    }

    cluster.run("ALTER TABLE widened ADD COLUMN d int DEFAULT 5", "DROP TABLE twice")
    found = copied.verify("widened", "twice", patience_s=0.0)
    assert (found["widened"].verdict, found["widened"].more) == ("differs", True)
    assert {each[1:] for each in told(found["widened"])} <= {
        ("d", "5", None),
        ("c", "crimson", "red"),
    }
    assert (found["twice"].verdict, found["twice"].differing) == ("differs", 0)
    assert "the source no longer has this table" in found["twice"].reason


def test_what_is_not_compared_is_named_and_never_equal(cluster: Cluster, client: Client) -> None:
    cluster.run(
        "CREATE TABLE aside (id int PRIMARY KEY)",
        "CREATE TABLE gone (id int PRIMARY KEY)",
        "CREATE TABLE unlike (id int PRIMARY KEY, old int)",
        "CREATE TABLE late (id int PRIMARY KEY, v text)",
        "CREATE TABLE nowhere (id int PRIMARY KEY)",
        "CREATE TABLE without_key (id int)",
        "INSERT INTO late VALUES (1, 'a')",
        "CREATE TABLE guarded (id int PRIMARY KEY)",
        "INSERT INTO guarded VALUES (1)",
    )
    copied = Copied(cluster, client, "aside")
    for table in ("aside", "unlike"):
        copied.copy(table)
    copied.copy("late", from_lsn=1)
    state = copied.state("aside")
    why = {"phase": "set_aside", "reason": "its owner wants it so", "helps": ("ask the owner",)}
    copied.put("aside", msgspec.structs.replace(state, **why))
    copied.copy("gone")
    gone = msgspec.structs.replace(copied.state("gone"), phase="left", reason="it was dropped")
    copied.put("gone", gone)
    cluster.run(
        "ALTER TABLE unlike DROP COLUMN old",
        "UPDATE late SET v = 'b'",
        "DROP TABLE gone",
    )
    everything = ("aside", "gone", "unlike", "late", "nowhere", "without_key")
    found = copied.verify(*everything, patience_s=0.3)
    assert {name: each.verdict for name, each in found.items()} == {
        "aside": "set_aside",
        "gone": "left",
        "unlike": "differs",
        # Without a replicator the change stays in transit forever.
        "late": "behind",
        "nowhere": "differs",
        "without_key": "set_aside",
    }
    assert (found["aside"].reason, found["aside"].helps) == (why["reason"], why["helps"])
    assert "'old' exists here" in found["unlike"].reason
    assert "no copy" in found["nowhere"].reason
    assert "key" in found["without_key"].reason
    assert (found["late"].differing, found["late"].unsettled) == (0, 1)
    ignores = {"ignores_set_aside": True}
    assert all_equal([found["aside"], found["gone"]], **ignores)
    assert not all_equal([found["gone"]]) and not all_equal([found["aside"]])
    for name in ("unlike", "late", "nowhere"):
        assert not all_equal([found["aside"], found[name]], **ignores)
    assert not all_equal([])
    copied.copy("guarded")
    cluster.run(
        "CREATE ROLE reader LOGIN",
        "GRANT SELECT ON guarded TO reader",
        "ALTER TABLE guarded ENABLE ROW LEVEL SECURITY",
    )
    guarded = copied.verify("guarded", user="reader")["guarded"]
    assert guarded.verdict == "failed"
    assert "row-level security" in guarded.reason
    with pytest.raises(NothingToCompare, match="'missing'"):
        copied.verify("missing")
    with pytest.raises(NothingToCompare, match="of origin 'other'; set --origin to one of o"):
        copied.verify(origin="other")
    place = msgspec.structs.replace(state.place, database="shop")
    copied.put("aside", msgspec.structs.replace(state, place=place))
    with pytest.raises(NothingToCompare, match="copied from database 'shop'"):
        copied.verify("aside")


def test_the_command_names_what_differs_and_ends_by_it(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    cluster.run(
        "CREATE TABLE told (id int PRIMARY KEY, v text)",
        "INSERT INTO told VALUES (1, 'a'), (2, NULL)",
    )
    Copied(cluster, client, "told").copy("told")

    def run(dsn: str, *options: str) -> subprocess.CompletedProcess[bytes]:
        command = ("replicate", "verify", dsn, "told", *options)
        return run_command(*command, cwd=tmp_path, endpoint=client.endpoint)

    fine = run(cluster.dsn, "told", "--json")
    assert fine.returncode == 0, fine.stderr
    facts = json.loads(fine.stdout)
    assert (facts["equal"], facts["tables"][0]["verdict"]) == (True, "equal")
    cluster.run("UPDATE told SET v = 'z' WHERE id = 2")
    wrong = run(cluster.dsn, "told", "--wait", "1s")
    assert wrong.returncode == 1, wrong.stderr
    assert "told id='2': v is 'z' at the source, null here\n" in wrong.stdout.decode()
    assert b"rows/s" in wrong.stderr
    check_refused(run(cluster.dsn, "--rename", "told"), 2, "--rename 'told' is not TABLE=NAME")
    check_refused(run(cluster.dsn, "--origin", "x"), 2, "no table of origin 'x'")
    check_refused(run(f"host={tmp_path} dbname=postgres"), 3, "PostgreSQL: ")


def test_no_change_on_its_way_is_taken_for_a_difference(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    """A replicator that is stopped repeatedly, and a row that changes all the time."""
    cluster.run("CREATE DATABASE load")
    load = copy(cluster)
    load.dsn = cluster.dsn.replace("dbname=postgres", "dbname=load")
    said, _ = load.pgbench("--initialize", "--scale=1", "--quiet").communicate(timeout=60)
    load.run("ALTER TABLE pgbench_history ADD COLUMN hid bigserial PRIMARY KEY")
    plan = VerifyPlan(load.dsn, "load", "", Names(), patience_s=60.0)
    with replicating(load.dsn, client.endpoint, "load", tmp_path) as replicator:
        until(lambda: replicator.said.count(" copied ") >= 4, "the copy", 60.0)
        clients = load.pgbench("--client=4", "--jobs=1", f"--time={LOAD_S}", "--no-vacuum")
        verdicts: list[TableVerdict] = []
        while clients.poll() is None:
            replicator.process.send_signal(signal.SIGSTOP)
            waking = threading.Timer(1.0, replicator.process.send_signal, [signal.SIGCONT])
            waking.start()
            verdicts += verify(plan, client)
            waking.join()
        said, _ = clients.communicate(timeout=60)
        assert clients.returncode == 0, said
        assert len(verdicts) >= 4
        assert [each for each in verdicts if each.verdict not in ("equal", "changing")] == []
        assert {each.verdict for each in verify(plan, client)} == {"equal"}
        # Differences are found while other rows change.
        client.delete("load", "pgbench_tellers", {"tid": [3]})
        load.run("UPDATE pgbench_branches SET bbalance = 1")
        [found] = verify(plan._replace(tables=("pgbench_tellers",)), client)
        assert told(found) == {("3", "missing", None, None)}


def test_a_publication_that_was_made_anew_is_told_and_gone_past(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    cluster.run(
        "CREATE TABLE again (id int PRIMARY KEY)", "CREATE PUBLICATION again FOR TABLE again"
    )
    plan = VerifyPlan(cluster.dsn, "again", "", Names(), patience_s=20.0)
    options = ("--publication", "again", "--slot", "again")
    with replicating(cluster.dsn, client.endpoint, "again", tmp_path, *options) as replicator:
        until(lambda: " copied " in replicator.said, "the copy", 60.0)
        replicator.stop()
        # No publication can decode this part of the log.
        cluster.run(
            "DROP PUBLICATION again",
            "INSERT INTO again VALUES (1)",
            "CREATE PUBLICATION again FOR TABLE again",
        )
        replicator.start()
        assert replicator.ended() == 1
        replicator.kill()
        assert "start once with --resync-all" in replicator.said
        replicator.start("--resync-all")
        until(lambda: client.query("again", "again").num_rows == 1, "the copy", 60.0)
        cluster.run("INSERT INTO again VALUES (2)")
        until(lambda: client.query("again", "again").num_rows == 2, "the change", 60.0)
        assert {each.verdict for each in verify(plan, client)} == {"equal"}
        replicator.stop()
