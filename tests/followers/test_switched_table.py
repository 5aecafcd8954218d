"""Followers of pushed tables: prepared or not, rolled back, killed, slow or stopped."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ingester.client import Client
from ingester.client.errors import ClientError
from ingester.followers import (
    FollowedTable,
    Follower,
    FollowerSink,
    FollowOptions,
    Rows,
    open_copy,
    versions,
)
from ingester.followers.duckdb_sink import DuckDBDatabase
from ingester.followers.parquet_sink import ParquetFolder
from ingester.pushes.record import PushRecord
from ingester.query.live_followers import ALIVE_S
from persist.manifest import current_version
from persist.switching import roll_back, switch_version
from tests.drivers.daemon import ROOT, Daemon
from tests.drivers.ports import steady_flight
from tests.drivers.pushing import push_some
from tests.drivers.waiting import until
from tests.followers.memory_sink import Disk, PlainSink, Row, content
from tests.followers.pushes import (
    PUSHED,
    Pushes,
    Reading,
    check_view,
    in_duckdb,
    in_parquet,
    pushed_rows,
    streaming,
)
from tests.followers.test_real_daemon import equal_soon, rows_of
from tests.followers.test_real_daemon import follower_of as memory_follower_of

NAMES = (f"t{number}" for number in itertools.count(1))


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("switched") / "d"
    with Daemon.start(folder, persist__max_age="1s", manifest__refresh="10ms") as started:
        yield started


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that flushes only on request."""
    folder = tmp_path_factory.mktemp("calm") / "d"
    with Daemon.start(folder, persist__max_age="1h", manifest__refresh="10ms") as started:
        yield started


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the waits for people and stores."""
    for name in ("LOOK_S", "KEEP_UP_S", "TRY_AGAIN_S", "DROP_AFTER_S"):
        monkeypatch.setattr(versions, name, 0.3)


def made_table(daemon: Daemon, *, keyed: bool = False) -> str:
    """Create a table whose files hold the rows of a push."""
    table = next(NAMES)
    with Client(daemon.flight) as client:
        key = ["id"] if keyed else None
        client.create_table("n", table, pushed_rows("").schema, primary_key=key)
        client.write("n", table, pushed_rows("first"))
        client.persist("n", table)
    return table


def follower_of(daemon: Daemon, table: str, make: Any, **options: Any) -> Follower:
    found = Follower(daemon.flight, make, options=FollowOptions(wait_s=0.2, **options))
    found.follow("n", table)
    return found


def at_version(follower: Follower, version: int) -> Callable[[], bool]:
    """Return a check that the copy is complete and at the version."""
    (status,) = follower.status()

    def is_there() -> bool:
        assert status.phase != "failed", status.error
        return status.table_version == version and status.phase == "live"

    return is_there


@pytest.mark.parametrize("kind", ["duckdb", "duckdb keyed", "parquet"])
def test_readers_see_one_version_or_the_other_through_pushes_and_a_rollback(
    daemon: Daemon, tmp_path: Path, kind: str
) -> None:
    table = made_table(daemon, keyed="keyed" in kind)
    pushes, path = Pushes(daemon, "n", table), tmp_path / "copy"
    into = ParquetFolder(path) if kind == "parquet" else DuckDBDatabase(path)
    seen = in_parquet if kind == "parquet" else in_duckdb
    filled: Counter[int] = Counter()

    def observed(of: FollowedTable, call: str, *_: object) -> None:
        filled[of.table_version] += call == "put_files"

    follower = follower_of(daemon, table, into.sink, observer=observed)
    with follower, streaming(daemon.flight, "n", table):
        follower.wait_current(20.0)
        with Reading(lambda: seen(path, table)) as reading:
            early = pushes.begin("prepared")
            pushes.region.start_followers(early)
            assert pushes.region.lagging_followers(early), "its data is not there"
            pushes.fill(early)
            pushes.prepare(early)
            calls = filled[2]
            pushes.region.swap(early)
            until(at_version(follower, 2), "the prepared copy")
            assert filled[2] == calls, "nothing was filled after the switch"
            late = pushes.made("unprepared")
            pushes.region.swap(late)
            until(at_version(follower, 3), "the copy that was not prepared")
            assert pushes.region.roll_back(late)
            until(at_version(follower, 2), "the copy of before")
            until(lambda: reading.labels[-1] == "prepared", "what readers see")
            given_up = pushes.made("given up")
            pushes.prepare(given_up)
            assert pushes.region.discard(given_up)
            until(lambda: follower.status()[0].coming is None, "the prepared copy to go")
    assert reading.labels == ["first", "prepared", "unprepared", "prepared"]
    again = follower_of(daemon, table, into.sink)
    with again, Client(daemon.flight) as client:
        again.wait_current(20.0)
        wanted = client.query("n", table, columns=["id", "v"]).to_pylist()
        assert sorted(seen(path, table)) == sorted((row["id"], row["v"]) for row in wanted)
        until(lambda: kept_in(path, table) == 1, "former copies to be dropped")
    into.close()


def kept_in(path: Path, table: str) -> int:
    """Return the number of copies of a table in a file or folder."""
    if path.is_dir():
        return len(list((path / ".ingester" / "n" / table).iterdir()))
    with open_copy(path) as reader:
        ((copies, states, rows),) = reader.execute(
            "SELECT (SELECT count(*) FROM _ingester.copies), (SELECT count(*) FROM"
            " _ingester.states), (SELECT count(*) FROM duckdb_tables() WHERE schema_name ="
            " '_ingester' AND table_name LIKE 'n/%')"
        ).fetchall()
    return max(int(copies), int(states), int(rows))


class Killed(BaseException):
    """A simulated end of the process."""


class KilledAt:
    """An observer that ends a follower right after its n-th commit.

    An end within a transaction leaves the state of the previous commit.
    """

    def __init__(self, commit: int) -> None:
        self._left = commit

    def __call__(self, of: FollowedTable, call: str, *_: object) -> None:
        self._left -= call == "commit"
        if self._left == 0:
            raise Killed

    @property
    def is_done(self) -> bool:
        return self._left <= 0


@pytest.mark.slow
def test_a_follower_that_is_killed_at_any_commit_goes_on_with_the_right_version(
    daemon: Daemon, tmp_path: Path
) -> None:
    table, path = made_table(daemon), tmp_path / "copy"
    pushes, labels = Pushes(daemon, "n", table), ["first"]
    with follower_of(daemon, table, DuckDBDatabase(path).sink) as follower:
        follower.wait_current(20.0)
    with (
        Reading(lambda: in_duckdb(path, table)) as reading,
        streaming(daemon.flight, "n", table),
    ):
        for call in itertools.count(1):
            record, killed = pushes.made(f"push-{call}"), KilledAt(call)
            pushed_beside(daemon, path, pushes, record, killed)
            with follower_of(daemon, table, DuckDBDatabase(path).sink) as follower:
                until(at_version(follower, call + 1), f"the copy after commit {call}")
            labels.append(check_view(in_duckdb(path, table)))
            assert labels[-1] == record.push_id
            if not killed.is_done:
                break
    assert len(labels) > 10, "so many commits there are at least"
    assert reading.labels == labels
    with follower_of(daemon, table, DuckDBDatabase(path).sink):
        until(lambda: kept_in(path, table) == 1, "former copies to be dropped")


def pushed_beside(
    daemon: Daemon, path: Path, pushes: Pushes, record: PushRecord, killed: KilledAt
) -> None:
    """Push while a follower may be killed: swap, after a prepare if the follower confirms."""
    _, table = pushes.table
    make = DuckDBDatabase(path).sink
    with follower_of(daemon, table, make, observer=killed) as follower:
        (status,) = follower.status()
        until(lambda: killed.is_done or status.phase == "live", "it to be live")
        pushes.region.start_followers(record)

        def is_prepared() -> bool:
            return status.coming is not None and "is prepared" in status.coming

        until(lambda: killed.is_done or is_prepared(), "it to have a copy")
        pushes.region.swap(record)
        version = current_version(pushes.region.home.store, *pushes.table)
        until(lambda: killed.is_done or status.table_version == version, "it to show that")
        until(lambda: killed.is_done or kept_in(path, table) == 1, "it to drop the former")


class Shelf:
    """The data that outlives a table's sinks: one copy per version, and which one is visible."""

    def __init__(self) -> None:
        self.disks: dict[int, Disk] = {}
        self.shown = 0
        self.held = threading.Event()
        """Until this is set, no later version is filled."""

    @property
    def rows(self) -> Counter[Row]:
        """The rows that readers see."""
        return content(self.disks[self.shown], keyed=False)


class ShelvedSink(PlainSink):
    """Keeps versions apart and its states at the daemon."""

    def __init__(self, table: FollowedTable, shelf: Shelf) -> None:
        super().__init__(table, shelf.disks.setdefault(table.table_version, Disk()))
        self.shelf = shelf

    def put(self, rows: Rows) -> None:
        if self.table.table_version > 1:
            assert self.shelf.held.wait(60.0)
        super().put(rows)

    def on_start_version(self, partitions: Any, is_current: bool) -> None:
        super().on_start_version(partitions, is_current)
        if is_current:
            self.shelf.shown = self.table.table_version

    def on_end_version(self, current: bool) -> None:
        super().on_end_version(current)
        self.shelf.shown = self.table.table_version

    def drop_version(self, table_version: int) -> None:
        self.shelf.disks.pop(table_version, None)  # the version may not exist


def test_who_has_not_confirmed_is_named_and_the_dead_are_not_waited_for(
    daemon: Daemon, tmp_path: Path
) -> None:
    table, shelf = made_table(daemon), Shelf()
    pushes = Pushes(daemon, "n", table)
    slow = follower_of(daemon, table, lambda of: ShelvedSink(of, shelf), name="slow")
    quick = follower_of(daemon, table, DuckDBDatabase(tmp_path / "quick").sink, name="quick")
    command = [sys.executable, "-m", "tests.followers.follower_process", daemon.flight]
    command += [str(tmp_path / "dead"), f"n/{table}"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    with process, slow, quick, Client(daemon.flight) as client:
        assert process.stdout is not None
        assert process.stdout.readline() == b"current\n"

        def alive() -> list[str]:
            listed = client.action("followers", {"namespace": "n", "table": table})
            return [each["name"].partition("/")[0] for each in listed if each["alive"]]

        until(lambda: len(alive()) == 3, "three followers")
        process.kill()
        process.wait()
        until(lambda: alive() == ["quick", "slow"], "the dead one to be missed", 2 * ALIVE_S)
        record = pushes.made("next")
        pushes.region.start_followers(record)

        def lagging() -> list[str]:
            return [name.partition("/")[0] for name in pushes.region.lagging_followers(record)]

        until(lambda: lagging() == ["slow"], "the quick one to confirm")
        shelf.held.set()
        until(lambda: not lagging(), "the slow one to confirm")
        assert (shelf.shown, shelf.rows.total()) == (1, PUSHED)
        pushes.region.swap(record)
        until(lambda: at_version(slow, 2)() and at_version(quick, 2)(), "both to show it")
        assert shelf.rows == rows_of(client, table)
        later = pushes.made("later")
        pushes.prepare(later)
        pushes.region.swap(later)
        until(lambda: at_version(slow, 3)() and shelf.shown == 3, "the next one")
        assert pushes.region.roll_back(later)  # to a copy that still exists or was just dropped
        until(lambda: at_version(slow, 2)() and shelf.shown == 2, "the one before")
        assert shelf.rows == rows_of(client, table)
        until(lambda: list(shelf.disks) == [2], "other copies to be dropped")
        until(
            lambda: (
                [each.partition for each in client.checkpoints("n", table)] == ["follower-v2/slow"]
            ),
            "its state to go, too",
        )
        # The follower resumes from the state that came with the switch.
        slow.close()
        client.write("n", table, {"id": [7000], "v": ["later"]})
        with follower_of(daemon, table, lambda of: ShelvedSink(of, shelf), name="slow") as again:
            again.wait_current(20.0)
            assert again.status()[0].progress.put_rows <= 1
            assert shelf.rows == rows_of(client, table)


def test_a_sink_that_keeps_no_versions_is_not_waited_for_and_follows_the_switch(
    daemon: Daemon,
) -> None:
    table, disk = made_table(daemon), Disk()
    pushes, made = Pushes(daemon, "n", table), list[PlainSink]()

    def make(of: FollowedTable) -> FollowerSink:
        made.append(PlainSink(of, disk))
        return made[-1]

    with (
        follower_of(daemon, table, make, name="plain") as follower,
        Client(daemon.flight) as client,
    ):
        follower.wait_current(20.0)
        record = pushes.made("next")
        pushes.prepare(record)
        assert client.action("followers", {"namespace": "n", "table": table}) == []
        pushes.region.swap(record)
        until(at_version(follower, 2), "the new version")
        client.write("n", table, {"id": [7000], "v": ["later"]})
        until(lambda: content(disk, keyed=False) == rows_of(client, table), "the copy to be equal")
    first, second = made
    assert first.calls.count("on_start_version") == second.calls.count("on_start_version") == 1
    assert second.calls.count("on_end_version") == 1, "it began beside what readers saw"


def test_a_copy_that_began_at_the_tail_ends_at_a_switch_and_says_what_helps(
    daemon: Daemon,
) -> None:
    table, disk = made_table(daemon), Disk()
    follower = Follower(daemon.flight, lambda of: PlainSink(of, disk), options=OPTIONS)
    follower.follow("n", table, begin="tail")
    pushes = Pushes(daemon, "n", table)
    with follower:
        follower.wait_current(20.0)
        pushes.region.swap(pushes.made("next"))
        with pytest.raises(ClientError, match=r"was switched from version 1 to 2, .* seek to the"):
            follower.run()
    again = Follower(daemon.flight, lambda of: PlainSink(of, disk), options=OPTIONS)
    again.follow("n", table, begin="tail")
    with again, Client(daemon.flight) as client:
        again.wait_current(20.0)
        client.write("n", table, {"id": [7000], "v": ["later"]})
        row = (("id", 7000), ("v", "later"))
        until(lambda: content(disk, keyed=False) == Counter([row]), "what comes from now on")


def test_a_daemon_that_was_killed_knows_its_followers_before_it_says_who_they_are(
    tmp_path: Path,
) -> None:
    shelf = Shelf()
    shelf.held.set()
    with Daemon.start(
        tmp_path / "d",
        arguments=steady_flight(),
        persist__max_age="1h",
        manifest__refresh="10ms",
    ) as daemon:
        table = made_table(daemon)
        pushes = Pushes(daemon, "n", table)
        with follower_of(daemon, table, lambda of: ShelvedSink(of, shelf), name="it") as follower:
            follower.wait_current(20.0)
            record = pushes.made("next")
            pushes.prepare(record)
            daemon.kill()
            daemon = daemon.again()
            with Client(daemon.flight) as client:
                asked = {"namespace": "n", "table": table}
                (found,) = client.action("followers", asked)
                assert (found["alive"], found["prepared"]) == (True, [2])
                pushes.region.swap(record)
                until(at_version(follower, 2), "the prepared copy")
                assert shelf.rows == rows_of(client, table)
        daemon.kill()


@pytest.mark.parametrize(
    ("keyed", "carry"), [(False, True), (False, False), (True, True), (True, False)]
)
def test_a_follower_that_was_away_over_a_switch_and_back_has_what_the_table_has(
    calm: Daemon, keyed: bool, carry: bool
) -> None:
    """Live rows went into the other version's files, and `applied` passes over them."""
    table, disk = made_table(calm, keyed=keyed), Disk()
    pushes = Pushes(calm, "n", table)
    store, name = pushes.region.home.store, pushes.table
    with Client(calm.flight) as client:
        switch_version(store, *name, push_some(store, name, "a", wanted=lambda add: False))
        until(lambda: client.describe(*name).table_version == 2, "the daemon to follow")
        with memory_follower_of(calm, disk, table) as follower:
            follower.wait_current(20.0)
            client.write("n", table, {"id": [7000, 7001], "v": ["live"] * 2})
            equal_soon(client, disk, table, keyed=keyed)
        # The rows are in buffers: a flush writes them to the current version.
        switch_version(store, *name, push_some(store, name, "b", wanted=lambda add: False))
        until(lambda: client.describe(*name).table_version == 3, "the daemon to follow")
        client.persist(*name)
        roll_back(store, *name, carry=carry)
        until(lambda: client.describe(*name).table_version == 2, "the daemon to follow")
        client.write("n", table, {"id": [7002], "v": ["later"]})
        with memory_follower_of(calm, disk, table) as follower:
            follower.wait_current(20.0)
            equal_soon(client, disk, table, keyed=keyed)
        assert content(disk, keyed=keyed).total() == (3 if carry else 1)


OPTIONS = FollowOptions(name="tail", wait_s=1.0)
