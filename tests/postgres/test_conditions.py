"""Conditions for following a table, read from the catalogs of three PostgreSQL versions."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg2
import pytest

from ingester.postgres.catalog import read_publication, read_server, read_tables
from ingester.postgres.conditions import breaks_writes, hindrance, notes
from ingester.postgres.connection import connect
from ingester.postgres.facts import TableFacts
from ingester.postgres.publication import ensure
from ingester.postgres.server_errors import SourceFailed
from tests.postgres.cluster import Cluster, serve_or_skip
from tests.postgres.versions import NEWEST, OLDEST

PARTITION_KEYS_SINCE = 110_000
GENERATED_SINCE = 120_000
VIA_ROOT_SINCE = 130_000
FILTERS_SINCE = 150_000
STATEMENTS = """
CREATE TYPE color AS ENUM ('red', 'green')
CREATE DOMAIN tint AS color
CREATE DOMAIN price AS numeric(10,2)
CREATE DOMAIN fee AS price
CREATE TYPE pair AS (a int, b tint)
CREATE TABLE whole (id int PRIMARY KEY, c tint, cs color[], f fee, p pair, r regclass)
INSERT INTO whole VALUES (1)
ALTER TABLE whole ADD COLUMN later int DEFAULT 5
CREATE TABLE "odd Name" ("select" int, "b c" int, PRIMARY KEY ("b c", "select"))
CREATE TABLE keyless (id int)
CREATE TABLE unused_index (id int NOT NULL UNIQUE)
CREATE TABLE by_index (id int NOT NULL UNIQUE)
ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_id_key
CREATE TABLE lost_index (id int NOT NULL UNIQUE)
ALTER TABLE lost_index REPLICA IDENTITY USING INDEX lost_index_id_key
ALTER TABLE lost_index DROP CONSTRAINT lost_index_id_key
CREATE TABLE other_index (id int PRIMARY KEY, u int NOT NULL UNIQUE)
ALTER TABLE other_index REPLICA IDENTITY USING INDEX other_index_u_key
CREATE TABLE full_keyless (id int)
ALTER TABLE full_keyless REPLICA IDENTITY FULL
CREATE TABLE full_unique (id int NOT NULL UNIQUE)
ALTER TABLE full_unique REPLICA IDENTITY FULL
CREATE TABLE nothing (id int PRIMARY KEY)
ALTER TABLE nothing REPLICA IDENTITY NOTHING
CREATE TABLE deferred (id int PRIMARY KEY DEFERRABLE)
CREATE TABLE deferred_full (id int PRIMARY KEY DEFERRABLE)
ALTER TABLE deferred_full REPLICA IDENTITY FULL
CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY)
CREATE TABLE parent (id int PRIMARY KEY)
CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent)
CREATE TABLE secret (id int PRIMARY KEY)
CREATE TABLE policed (id int PRIMARY KEY)
GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader
REVOKE ALL ON secret FROM reader
ALTER TABLE policed ENABLE ROW LEVEL SECURITY
CREATE VIEW seen AS SELECT 1 AS id
CREATE PUBLICATION everything FOR ALL TABLES
CREATE PUBLICATION less FOR TABLE whole WITH (publish = 'insert, update')
"""
FOLLOWED = {"whole", "odd Name", "by_index", "other_index", "full_unique", "deferred_full"}
HINDERED = {
    "keyless": ("it has no primary key", "ALTER TABLE public.keyless ADD PRIMARY KEY (…)"),
    "unused_index": (
        "it has no primary key",
        "ALTER TABLE public.unused_index REPLICA IDENTITY USING INDEX unused_index_id_key",
    ),
    "lost_index": ("was dropped", "ALTER TABLE public.lost_index REPLICA IDENTITY DEFAULT"),
    "full_keyless": (
        "it has no primary key",
        "ALTER TABLE public.full_keyless ADD PRIMARY KEY (…)",
    ),
    "nothing": ("IDENTITY is NOTHING", "ALTER TABLE public.nothing REPLICA IDENTITY DEFAULT"),
    "deferred": ("is deferrable", "ALTER TABLE public.deferred REPLICA IDENTITY FULL"),
    "unlogged": ("it is unlogged", "ALTER TABLE public.unlogged SET LOGGED"),
    "secret": ("role 'reader' may not read it", "GRANT USAGE ON SCHEMA public TO reader"),
    "policed": ("row-level security", "ALTER ROLE reader BYPASSRLS"),
    "seen": ("it is a view", "follow the tables that it reads"),
}
BREAKING = {"keyless", "unused_index", "lost_index", "nothing", "deferred"}


@pytest.fixture(scope="module", params=[OLDEST, None, NEWEST])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    with serve_or_skip(tmp_path_factory.mktemp("postgres"), request.param) as running:
        running.run("CREATE ROLE reader LOGIN REPLICATION", "CREATE ROLE plain LOGIN")
        yield running


@pytest.fixture
def database(cluster: Cluster) -> Iterator[Cluster]:
    """The server with a database of its own for each test."""
    cluster.run("CREATE DATABASE trial")
    whole, cluster.dsn = cluster.dsn, cluster.dsn.replace("dbname=postgres", "dbname=trial")
    yield cluster
    cluster.dsn = whole
    cluster.run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'trial'",
        "DROP DATABASE trial",
    )


def tables_of(dsn: str, publication: str) -> dict[str, TableFacts]:
    connection = connect(dsn)
    try:
        found = read_tables(connection, publication, everything=True)
    finally:
        connection.close()
    return {table.name: table for table in found}


def test_each_table_is_followed_or_told_why_not(database: Cluster) -> None:
    database.run(*STATEMENTS.strip().splitlines())
    reader = connect(database.dsn.replace("user=bench", "user=reader"))
    server, publication = read_server(reader), read_publication(reader, "everything")
    assert (server.role, server.database, server.wal_level) == ("reader", "trial", "logical")
    assert (server.may_replicate, server.bypasses_rls, server.may_create) == (True, False, False)
    assert (server.slots_free, server.senders_free, server.in_recovery) == (10, 10, False)
    [(identifier,)] = database.run("SELECT system_identifier FROM pg_control_system()")
    assert server.system_identifier == str(identifier)
    assert (publication.all_tables, publication.owned, publication.ours) == (True, False, False)
    tables = {t.name: t for t in read_tables(reader, "everything", everything=True)}
    told = {name: hindrance(table, server, publication) for name, table in tables.items()}
    assert {name for name, each in told.items() if each is None} == {*FOLLOWED, "parent", "child"}
    assert {name for name, each in told.items() if each is not None} == set(HINDERED)
    for name, (reason, help_) in HINDERED.items():
        found = told[name]
        assert found is not None
        assert reason in found.reason
        assert found.helps[0] == help_
    broken = {name for name, each in tables.items() if breaks_writes(each, publication)}
    assert broken == BREAKING
    assert tables["odd Name"].key == ("b c", "select")
    assert tables["other_index"].key == ("u",)
    assert tables["parent"].heirs == 1
    # One publication leaves out a kind of change, the other does not exist.
    less = read_publication(reader, "less")
    found = hindrance(read_tables(reader, "less")[0], server, less)
    assert found is not None
    assert "does not publish delete" in found.reason
    assert found.helps[0].startswith(
        "ALTER PUBLICATION less SET (publish = 'insert, update, delete"
    )
    assert not read_publication(reader, "none").exists
    assert read_tables(reader, "none") == []
    missing = hindrance(tables["whole"], server, read_publication(reader, "none"))
    assert missing is not None
    assert missing.reason == "publication 'none' does not exist"
    whole = {column.name: column for column in tables["whole"].columns}
    labels = [label for _, label in whole["c"].enum_labels]
    assert labels == [label for _, label in whole["cs"].enum_labels] == ["red", "green"]
    assert [label for _, label in whole["p"].enum_labels] == labels
    assert len(whole["p"].fields) == 2
    assert (whole["f"].base_oid, whole["f"].base_modifier) == (1700, ((10 << 16) | 2) + 4)
    assert whole["later"].has_missing == (server.version_num >= 110_000)
    assert not whole["id"].has_missing
    assert any(note.startswith("r (regclass)") for note in notes(tables["whole"]))
    assert all(column.altered_by > 0 for column in whole.values())
    reader.close()


def test_partitions_are_told_from_their_root_and_as_born_or_attached(database: Cluster) -> None:
    [(text,)] = database.run("SHOW server_version_num")
    version = int(text)
    key = ", PRIMARY KEY (id)" if version >= PARTITION_KEYS_SINCE else ""
    database.run(
        f"CREATE TABLE log (id int NOT NULL, v text{key}) PARTITION BY RANGE (id)",
        "CREATE TABLE born PARTITION OF log FOR VALUES FROM (0) TO (9)",
        "CREATE TABLE middle PARTITION OF log FOR VALUES FROM (10) TO (19) PARTITION BY RANGE (id)",
        "CREATE TABLE lower PARTITION OF middle FOR VALUES FROM (10) TO (19)",
        "CREATE TABLE later (id int NOT NULL, v text)",
        "ALTER TABLE log ATTACH PARTITION later FOR VALUES FROM (20) TO (29)",
        # One transaction logs a row of a table and then attaches the table as a partition.
        "CREATE TABLE filled (id int NOT NULL, v text);"
        " INSERT INTO filled VALUES (30);"
        " ALTER TABLE log ATTACH PARTITION filled FOR VALUES FROM (30) TO (39)",
        "CREATE PUBLICATION leaves FOR ALL TABLES",
    )
    leaves = {"born", "filled", "later", "lower"}
    assert set(tables_of(database.dsn, "leaves")) == leaves
    if version < VIA_ROOT_SINCE:
        return
    database.run("CREATE PUBLICATION root FOR ALL TABLES WITH (publish_via_partition_root = true)")
    [table] = tables_of(database.dsn, "root").values()
    assert (table.name, table.kind, table.filenode, table.key) == ("log", "p", 0, ("id",))
    assert {leaf.name for leaf in table.leaves} == leaves
    born = {leaf.name for leaf in table.leaves if leaf.created_by == leaf.attached_by}
    assert born == {"born", "lower"}
    connection = connect(database.dsn)
    server, publication = read_server(connection), read_publication(connection, "root")
    assert hindrance(table, server, publication) is None
    database.run("ALTER TABLE lower REPLICA IDENTITY NOTHING")
    [table] = read_tables(connection, "root")
    found = hindrance(table, server, publication)
    assert found is not None
    assert "partition public.lower has a different REPLICA IDENTITY" in found.reason
    assert breaks_writes(table, publication)
    database.run(
        "ALTER TABLE lower REPLICA IDENTITY DEFAULT", "ALTER TABLE log REPLICA IDENTITY FULL"
    )
    [table] = read_tables(connection, "root")
    assert hindrance(table, server, publication) is not None
    database.run("ALTER TABLE log REPLICA IDENTITY DEFAULT")
    for made, dropped, reason in (
        (
            "CREATE UNLOGGED TABLE far PARTITION OF log FOR VALUES FROM (40) TO (49)",
            "DROP TABLE far",
            "partition public.far is unlogged",
        ),
        (
            "CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w;"
            " CREATE TABLE keyless (id int NOT NULL, v text) PARTITION BY RANGE (id);"
            " CREATE FOREIGN TABLE far PARTITION OF keyless FOR VALUES FROM (0) TO (9) SERVER s;"
            " ALTER TABLE keyless REPLICA IDENTITY FULL",
            "DROP TABLE keyless",
            "it has no primary key",
        ),
    ):
        database.run(made)
        reasons = [
            each.reason
            for table in read_tables(connection, "root")
            if (each := hindrance(table, server, publication))
        ]
        assert len(reasons) == 1
        assert reason in reasons[0]
        database.run(dropped)
    # A table is read by OID even if only its middle partition, or nothing of it, is published.
    database.run("CREATE PUBLICATION part FOR TABLE middle WITH (publish_via_partition_root)")
    assert [each.name for each in read_tables(connection, "part")] == ["middle"]
    [again] = read_tables(connection, "part", [table.oid, 1])
    assert (again.name, again.published) == ("log", False)
    connection.close()


def test_what_a_publication_leaves_out_is_seen(database: Cluster) -> None:
    [(text,)] = database.run("SHOW server_version_num")
    if int(text) < GENERATED_SINCE:
        return
    database.run(
        "CREATE TABLE made (a int, b int GENERATED ALWAYS AS (a * 2) STORED, PRIMARY KEY (b))",
        "CREATE TABLE one (id int PRIMARY KEY, x int, g int GENERATED ALWAYS AS (x) STORED)",
        "CREATE TABLE two (id int PRIMARY KEY, x int)",
        "CREATE PUBLICATION p FOR TABLE made, one, two",
    )
    connection = connect(database.dsn)
    server, publication = read_server(connection), read_publication(connection, "p")

    def told() -> dict[str, str]:
        """Return the reason for each table that cannot be followed."""
        return {
            table.name: found.reason
            for table in read_tables(connection, "p")
            if (found := hindrance(table, server, read_publication(connection, "p")))
        }

    assert list(told()) == ["made"]
    assert "key column b is generated" in told()["made"]
    tables = tables_of(database.dsn, "p")
    assert [column.name for column in tables["one"].sent_columns] == ["id", "x"]
    assert notes(tables["one"])[0].startswith("g: generated")
    before = tables["two"].published_by
    database.run("ALTER PUBLICATION p DROP TABLE two", "ALTER PUBLICATION p ADD TABLE two")
    again = tables_of(database.dsn, "p")["two"].published_by
    assert again != before
    database.run("CREATE TABLE later (id int)", "ALTER PUBLICATION p ADD TABLE later")
    database.run("DROP TABLE later")
    assert tables_of(database.dsn, "p")["two"].published_by == again
    database.run("ALTER PUBLICATION p SET (publish = 'insert')")
    database.run("ALTER PUBLICATION p SET (publish = 'insert, update, delete, truncate')")
    assert tables_of(database.dsn, "p")["two"].published_by != again
    if server.version_num >= FILTERS_SINCE:
        database.run("ALTER PUBLICATION p SET TABLE one (id), two WHERE (id > 3)")
        assert "has a column list" in told()["one"]
        assert "has a row filter" in told()["two"]
        assert breaks_writes(tables_of(database.dsn, "p")["one"], publication) is None
        database.run("ALTER TABLE one REPLICA IDENTITY FULL")
        broken = breaks_writes(tables_of(database.dsn, "p")["one"], publication)
        assert broken is not None
        assert "its column list omits" in broken.reason
        with pytest.raises(psycopg2.Error, match=r"does not cover|not part of"):
            database.run("INSERT INTO one VALUES (1)", "UPDATE one SET x = 2")
        # The entry of the schema overrides the row filter.
        database.run("ALTER PUBLICATION p SET TABLE two WHERE (id > 3), TABLES IN SCHEMA public")
        assert list(told()) == ["made"]
    if server.version_num >= 180_000:
        database.run("ALTER PUBLICATION p SET (publish_generated_columns = stored)")
        assert told() == {}
        one = tables_of(database.dsn, "p")["one"]
        assert [column.name for column in one.sent_columns] == ["id", "x", "g"]
    assert publication.altered_by > 0
    connection.close()


def test_a_publication_has_what_can_be_followed_and_is_taken_back(database: Cluster) -> None:
    database.run(
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE TABLE heir (PRIMARY KEY (id)) INHERITS (a)",
        "CREATE TABLE b (id int NOT NULL UNIQUE)",
        "CREATE TABLE taken (id int PRIMARY KEY)",
        "ALTER TABLE taken OWNER TO reader",
    )

    def published() -> set[str]:
        """Return the tables of the publication, as the server lists them."""
        rows = database.run("SELECT tablename FROM pg_publication_tables WHERE pubname = 'ing'")
        return {name for (name,) in rows}

    connection = connect(database.dsn)

    def look() -> tuple[set[str], dict[str, str]]:
        made = ensure(connection, "ing", read_tables(connection, "ing", everything=True))
        return published(), {table.name: found.reason for table, found in made.left_out}

    first = ensure(connection, "ing", read_tables(connection, "ing", everything=True))
    assert first.created
    assert first.changed
    assert published() == {"a", "heir", "taken"}
    first.undo()
    assert database.run("SELECT 1 FROM pg_publication") == []
    assert look() == ({"a", "heir", "taken"}, {"b": "it has no primary key"})
    assert read_publication(connection, "ing").ours
    # New tables and new keys are added; a table that loses its key blocks writes only briefly.
    database.run(
        "ALTER TABLE b ADD PRIMARY KEY (id)",
        "CREATE TABLE c (id int PRIMARY KEY)",
        "ALTER TABLE a DROP CONSTRAINT a_pkey",
        "INSERT INTO a VALUES (1)",
    )
    again = ensure(connection, "ing", read_tables(connection, "ing", everything=True))
    assert not again.created
    assert {table.name for table in again.added} == {"b", "c"}
    assert {table.name for table in again.dropped} == {"a"}
    assert published() == {"b", "c", "heir", "taken"}
    database.run("UPDATE a SET id = 2")
    assert not ensure(connection, "ing", read_tables(connection, "ing")).changed
    again.undo()
    assert published() == {"heir", "taken"}
    # A locked table waits for the next look; the others do not.
    holder = connect(database.dsn)
    holder.autocommit = False
    holder.cursor().execute("LOCK TABLE public.b")
    found, left_out = look()
    assert found == {"c", "heir", "taken"}
    assert "lock" in left_out["b"]
    holder.close()
    assert look()[0] == {"b", "c", "heir", "taken"}
    # A role without ownership is shown the commands, and nothing is changed.
    reader = connect(database.dsn.replace("user=bench", "user=reader"))
    with pytest.raises(SourceFailed, match="may not create it") as told:
        ensure(reader, "other", read_tables(reader, "other", everything=True))
    assert told.value.helps[0] == "GRANT CREATE ON DATABASE trial TO reader"
    before = published()
    database.run("CREATE TABLE d (id int PRIMARY KEY)")
    assert not ensure(reader, "ing", read_tables(reader, "ing", everything=True)).changed
    assert published() == before
    reader.close()
    connection.close()
