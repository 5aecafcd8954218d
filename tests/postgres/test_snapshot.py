"""Snapshots of PostgreSQL 10 and 18: their position in the log, and refused tables."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest

from ingester.postgres.connection import Stopped
from ingester.postgres.facts import TableFacts
from ingester.postgres.pgoutput import Change, CommitMessage, parse
from ingester.postgres.snapshot import ChangedMeanwhile, SourceSnapshot
from tests.drivers.waiting import until
from tests.postgres.cluster import Cluster
from tests.postgres.messages import cells_of
from tests.postgres.versions import NEWEST, OLDEST

SNAPSHOTS = 6
LOADERS = 5

pytestmark = pytest.mark.parametrize("cluster", [OLDEST, NEWEST], indirect=True)


@pytest.fixture
def session(cluster: Cluster) -> Iterator[Any]:
    """A session of the application, without autocommit."""
    import psycopg2

    connection = psycopg2.connect(cluster.dsn)
    yield connection
    connection.close()


def never() -> bool:
    return False


def taken(cluster: Cluster, **how: Any) -> Any:
    return SourceSnapshot.take(cluster.dsn, "copy", how.pop("stopped", never), **how)


def facts_of(snapshot: SourceSnapshot, table: str) -> TableFacts:
    with snapshot.connection.cursor() as cursor:
        cursor.execute("SELECT %s::regclass::oid::bigint", (table,))
        [facts] = snapshot.facts("", [cursor.fetchone()[0]])
    return facts


def slots(cluster: Cluster) -> int:
    [(count,)] = cluster.run("SELECT count(*)::int FROM pg_replication_slots WHERE temporary")
    return int(count)


class Load:
    """Writers that use features which decoders get wrong; each id is written once."""

    def __init__(self, cluster: Cluster) -> None:
        self._dsn = cluster.dsn
        self._over = threading.Event()
        self.errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(number,)) for number in range(LOADERS)
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        import psycopg2

        random = Random(number)
        connection = psycopg2.connect(self._dsn)
        connection.autocommit = True
        insert = "INSERT INTO loaded DEFAULT VALUES"
        try:
            with connection.cursor() as cursor:
                turn = 0
                while not self._over.is_set():
                    turn += 1
                    cursor.execute(f"BEGIN; {insert}")
                    kind = random.choice(("plain", "saved", "many", "long", "prepared", "back"))
                    if kind == "saved":
                        cursor.execute(f"SAVEPOINT a; {insert}; ROLLBACK TO a; {insert}")
                    elif kind == "many":
                        # More subtransactions than a process lists in shared memory.
                        for _ in range(70):
                            cursor.execute(f"SAVEPOINT a; {insert}; RELEASE a")
                    elif kind == "long":
                        self._over.wait(random.uniform(0.0, 0.3))
                        cursor.execute(insert)
                    elif kind == "prepared":
                        name = f"p-{number}-{turn}"
                        cursor.execute(f"PREPARE TRANSACTION '{name}'")
                        self._over.wait(random.uniform(0.0, 0.1))
                        cursor.execute(f"COMMIT PREPARED '{name}'")
                    if kind != "prepared":
                        cursor.execute("ROLLBACK" if kind == "back" else "COMMIT")
        except BaseException as exc:
            self.errors.append(exc)
        finally:
            connection.close()


def streamed(cluster: Cluster) -> dict[int, int]:
    """Return the ids in the slot's stream, with the end of their transaction."""
    found: dict[int, int] = {}
    part: list[int] = []
    for (data,) in cluster.run(
        "SELECT data FROM pg_logical_slot_peek_binary_changes('all', NULL, NULL,"
        " 'proto_version', '1', 'publication_names', 'all')"
    ):
        message = parse(bytes(data))
        if isinstance(message, Change):
            _, new = cells_of(message)
            assert new is not None
            assert isinstance(new[0], bytes)
            part.append(int(new[0]))
        elif isinstance(message, CommitMessage):
            assert not found.keys() & part
            found.update(dict.fromkeys(part, message.end_lsn))
            part = []
    return found


def test_a_snapshot_has_exactly_what_was_committed_up_to_its_position(cluster: Cluster) -> None:
    cluster.run(
        "CREATE TABLE loaded (id bigserial PRIMARY KEY)",
        "CREATE PUBLICATION all_of_it FOR TABLE loaded",
        'ALTER PUBLICATION all_of_it RENAME TO "all"',
        "SELECT pg_create_logical_replication_slot('all', 'pgoutput')",
    )
    seen: list[tuple[int, set[int]]] = []
    with Load(cluster) as load:
        for _ in range(SNAPSHOTS):
            with taken(cluster) as snapshot, snapshot.connection.cursor() as cursor:
                assert slots(cluster) == 0
                with snapshot.locked(facts_of(snapshot, "public.loaded")):
                    cursor.execute("SELECT id FROM public.loaded")
                    seen.append((snapshot.lsn, {row[0] for row in cursor.fetchall()}))
    assert not load.errors
    ends = streamed(cluster)
    assert set(ends) == {row[0] for row in cluster.run("SELECT id FROM loaded")}
    for lsn, rows in seen:
        assert rows == {row for row, end in ends.items() if end <= lsn}
    sizes = [len(rows) for _, rows in seen]
    assert 0 < sizes[1] < sizes[-1] < len(ends)
    cluster.run("SELECT pg_drop_replication_slot('all')")


def test_vacuum_leaves_what_a_snapshot_without_its_slot_sees(cluster: Cluster) -> None:
    cluster.run("CREATE TABLE gone (a int PRIMARY KEY)")
    cluster.run("INSERT INTO gone SELECT generate_series(1, 5000)")
    with taken(cluster) as snapshot, snapshot.connection.cursor() as cursor:
        facts = facts_of(snapshot, "public.gone")
        cluster.run("DELETE FROM gone", "VACUUM gone", "VACUUM gone")
        with snapshot.locked(facts):
            cursor.execute("SELECT count(*) FROM public.gone")
            assert cursor.fetchall() == [(5000,)]


CHANGES = {
    "rewritten": "ALTER TABLE {t} ALTER b TYPE bigint USING b * 2",
    "emptied": "TRUNCATE {t}",
    "dropped": "DROP TABLE {t} CASCADE",
    "widened": "ALTER TABLE {t} ADD c int DEFAULT 7",
    "narrowed": "ALTER TABLE {t} DROP b",
    "renamed": "ALTER TABLE {t} RENAME TO {t}_before",
    "swapped": "ALTER TABLE {t} RENAME TO {t}_before; CREATE TABLE {t} (a int PRIMARY KEY, b int)",
    "moved": "CREATE SCHEMA of_{t}; ALTER TABLE {t} SET SCHEMA of_{t}",
    "clustered": "CLUSTER {t} USING {t}_pkey",
    "another column of the name": "ALTER TABLE {t} DROP b; ALTER TABLE {t} ADD b int",
    "a view of the name": "ALTER TABLE {t} RENAME TO {t}_before;"
    " CREATE VIEW {t} AS SELECT * FROM {t}_before",
}
PARTITIONED = {
    "attached": "CREATE TABLE {t}_2 (a int NOT NULL, b int); INSERT INTO {t}_2 VALUES (2, 2);"
    " ALTER TABLE {t} ATTACH PARTITION {t}_2 FOR VALUES IN (2)",
    "detached": "ALTER TABLE {t} DETACH PARTITION {t}_1",
    "emptied": "TRUNCATE {t}_1",
    "rewritten": "ALTER TABLE {t} ALTER b TYPE bigint",
}


def test_a_table_that_was_changed_after_the_snapshot_is_not_read(cluster: Cluster) -> None:
    for number, (what, change) in enumerate([*CHANGES.items(), *PARTITIONED.items()]):
        t = f"changed_{number}"
        if change in CHANGES.values():
            cluster.run(f"CREATE TABLE {t} (a int PRIMARY KEY, b int)")
        else:
            cluster.run(
                f"CREATE TABLE {t} (a int NOT NULL, b int) PARTITION BY LIST (a)",
                f"CREATE TABLE {t}_1 PARTITION OF {t} FOR VALUES IN (1)",
            )
        cluster.run(f"INSERT INTO {t} VALUES (1, 1)")
        with taken(cluster) as snapshot:
            facts = facts_of(snapshot, f"public.{t}")
            cluster.run(*change.format(t=t).split(";"))
            with pytest.raises(ChangedMeanwhile, match=rf"public\.{t}"), snapshot.locked(facts):
                pytest.fail(f"a table that was {what} was read")
            # The snapshot stays usable for other tables and holds no lock.
            cluster.run("CREATE TABLE IF NOT EXISTS quiet (a int PRIMARY KEY)")
            assert not snapshot._held()


def test_a_schema_that_is_renamed_while_a_table_is_read_is_noticed(cluster: Cluster) -> None:
    cluster.run("CREATE SCHEMA shop", "CREATE TABLE shop.t (a int PRIMARY KEY)")
    cluster.run("CREATE SCHEMA other", "CREATE TABLE other.t (a int PRIMARY KEY)")
    with taken(cluster) as snapshot, snapshot.connection.cursor() as cursor:
        facts = facts_of(snapshot, "shop.t")

        def read(*first: str) -> None:
            with snapshot.locked(facts):
                cluster.run(*first)
                cursor.execute("SELECT * FROM shop.t")

        read("SELECT 1")
        with pytest.raises(ChangedMeanwhile, match="another table"):
            read("ALTER SCHEMA shop RENAME TO before", "ALTER SCHEMA other RENAME TO shop")


def test_a_table_that_somebody_has_for_himself_is_waited_for(
    cluster: Cluster, session: Any
) -> None:
    cluster.run("CREATE TABLE held (a int PRIMARY KEY)")
    told: list[str] = []
    wanted = threading.Event()
    with taken(cluster, waiting=told.append, stopped=wanted.is_set) as snapshot:
        facts = facts_of(snapshot, "public.held")
        with session.cursor() as cursor:
            cursor.execute("LOCK TABLE held IN ACCESS EXCLUSIVE MODE")

        def give_back(text: str) -> None:
            if text:
                told.append(text)
                session.rollback()

        snapshot._waiting = give_back
        with snapshot.locked(facts):
            assert f"pid {session.info.backend_pid}, role bench" in told[-1]
        with session.cursor() as cursor:
            cursor.execute("LOCK TABLE held IN ACCESS EXCLUSIVE MODE")
        snapshot._waiting = lambda text: wanted.set()
        with pytest.raises(Stopped), snapshot.locked(facts):
            pytest.fail("a table was read that somebody else had")


@contextmanager
def taking(cluster: Cluster, told: list[str], over: threading.Event) -> Iterator[list[Any]]:
    """Take a snapshot in a thread; the list receives the snapshot, or the error."""
    found: list[Any] = []

    def take() -> None:
        try:
            with taken(cluster, waiting=told.append, stopped=over.is_set) as snapshot:
                found.append(snapshot.lsn)
        except BaseException as exc:
            found.append(exc)

    thread = threading.Thread(target=take)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def test_a_snapshot_says_which_transactions_it_waits_for(cluster: Cluster, session: Any) -> None:
    cluster.run("CREATE TABLE written (a int PRIMARY KEY)")
    with session.cursor() as cursor:
        cursor.execute("INSERT INTO written VALUES (1)")
    told: list[str] = []
    with taking(cluster, told, threading.Event()) as found:
        pid = f"pid {session.info.backend_pid}, role bench"
        until(lambda: any(pid in text for text in told), "the session to be named")
        with session.cursor() as cursor:
            cursor.execute("PREPARE TRANSACTION 'forgotten'")
        gid = "prepared transaction 'forgotten' of bench"
        until(lambda: any(gid in text for text in told), "the prepared one to be named")
        assert not found
        cluster.run("COMMIT PREPARED 'forgotten'")
        until(lambda: bool(found), "the snapshot")
        assert isinstance(found[0], int)
        assert told[-1] == ""


def test_a_snapshot_that_waits_ends_when_it_is_stopped_and_leaves_no_slot(
    cluster: Cluster, session: Any
) -> None:
    cluster.run("CREATE TABLE unfinished (a int PRIMARY KEY)")
    with session.cursor() as cursor:
        cursor.execute("INSERT INTO unfinished VALUES (1)")
    told: list[str] = []
    over = threading.Event()
    with taking(cluster, told, over) as found:
        until(lambda: bool(told), "it to wait")
        over.set()
        until(lambda: bool(found), "it to end")
    assert isinstance(found[0], Stopped)
    until(lambda: slots(cluster) == 0, "the slot to go")
