"""Pushes through regions whose daemons serve and take writes meanwhile; one store is on S3."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pyarrow.flight as fl
import pytest

from ingester.pushes.config import push_config
from ingester.pushes.record import PushPlan, PushRecord
from ingester.pushes.regions.region import open_regions
from ingester.pushes.regions.store import RegionDaemons
from ingester.pushes.states import Status
from ingester.pushes.tasks import RegionUnreachable
from persist.manifest import Manifest
from tests.drivers.daemon import Daemon
from tests.drivers.s3_server import S3Server
from tests.drivers.waiting import until
from tests.drivers.wire import act, persist, put, query
from tests.pushes.realm import TABLE, Job, Realm, some_rows

OLD, NEW = some_rows(0, 300), some_rows(1000, 500)
STREAMED = 1_000_000
BATCH = 5
PAUSE_S = 0.05
"""Between two calls of a client: the S3 server handles one request at a time."""


class Clients:
    """One client writes to a daemon and one reads from it, until the test ends them."""

    def __init__(self, daemon: Daemon, realm: Realm, region: str) -> None:
        self._daemon = daemon
        self._store = realm.regions[region].home.store
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self.acknowledged = 0
        """The number of acknowledged batches."""
        self.shown: list[str] = []
        """The tables that a query returned, one entry per change."""
        self.errors: list[BaseException] = []

    def begin(self, work: Callable[[fl.FlightClient], None]) -> None:
        """Repeat a piece of work in a thread."""

        def run() -> None:
            try:
                with fl.connect(self._daemon.flight) as client:
                    while not self._stop.wait(PAUSE_S):
                        work(client)
            except BaseException as exc:
                self.errors.append(exc)

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()

    def shows(self, kind: str) -> bool:
        """Return whether the last query saw this table, or something failed."""
        return bool(self.errors) or self.shown[-1:] == [kind]

    def end(self) -> None:
        """Stop both clients."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def write(self, client: fl.FlightClient) -> None:
        sequence = self.acknowledged + 1
        rows = some_rows(STREAMED + self.acknowledged * BATCH, BATCH)
        put(client, TABLE, rows, origin="o", metadata=[{"sequence": sequence}])
        self.acknowledged = sequence
        if sequence % 5 == 0:
            persist(client, TABLE)

    def look(self, client: fl.FlightClient) -> None:
        acknowledged = self.acknowledged
        found = sorted(query(client, TABLE, columns=["n"])["n"].to_pylist())
        self._saw([n for n in found if n < STREAMED])
        streamed = [n for n in found if n >= STREAMED]
        assert streamed == list(range(STREAMED, STREAMED + len(streamed))), "each once"
        assert len(streamed) >= acknowledged * BATCH
        state = Manifest(self._store, *TABLE).load()
        pushed = [add for add in state.files.values() if add.stats["n"].min in (0, 1000, 1250)]
        assert sum(add.rows for add in pushed) in (len(OLD), len(NEW))

    def _saw(self, numbers: list[int]) -> None:
        known = {"old": OLD, "new": NEW}
        (kind,) = [each for each, rows in known.items() if rows["n"].to_pylist() == numbers]
        if self.shown[-1:] != [kind]:
            self.shown.append(kind)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    """An S3 server with one bucket."""
    with S3Server.start() as server:
        server.make_bucket("lake")
        yield server


@pytest.mark.s3
@pytest.mark.slow
def test_readers_see_the_old_or_the_new_table_with_all_rows_that_are_written_meanwhile(
    tmp_path: Path, server: S3Server
) -> None:
    (tmp_path / "c").mkdir()
    with ExitStack() as stack:
        a = stack.enter_context(Daemon.start(tmp_path / "a", manifest__refresh="20ms"))
        b = stack.enter_context(
            Daemon.start(
                tmp_path / "b",
                environment=server.environment,
                store="s3://lake/b",
                manifest__refresh="20ms",
            )
        )
        for daemon in (a, b):
            with fl.connect(daemon.flight) as client:
                put(client, TABLE, OLD)
                persist(client, TABLE)
            # The first question waits until every live follower can have called.
            early = threading.Thread(target=_ask_for_followers, args=(daemon.flight,))
            early.start()
            stack.callback(early.join)
        regions = {
            "a": {"url": f"file://{tmp_path / 'a' / 'store'}", "endpoints": [a.flight]},
            "b": {
                "url": "s3://lake/b",
                "endpoints": [b.flight],
                "store_options": server.storage_options,
            },
            "c": {"url": f"file://{tmp_path / 'c'}"},
        }
        realm = Realm(open_regions(push_config({"regions": regions}).regions))
        at_a, at_b = Clients(a, realm, "a"), Clients(b, realm, "b")
        stack.callback(at_b.end)
        stack.callback(at_a.end)
        at_a.begin(at_a.look)
        at_b.begin(at_b.look)
        # The job writes to one region; the rows are copied to and from S3.
        job = Job(realm, NEW, into="a")

        def hear(record: PushRecord) -> None:
            if job.files is None and all(each.table_version for each in record.regions):
                at_a.begin(at_a.write)
                job.hear(record)

        held = realm.begin(NEW, plan=PushPlan(replay_since="start"))
        assert realm.lead(held, hear).status is Status.SERVING
        assert [state and state[0] for state in realm.states()] == [2, 2, 2]
        _shows(at_a, at_b, "new")
        realm.pushes.request("p1", "rollback", "on second thought", realm.now)
        held = realm.pushes.take_over("p1", "c2", realm.now)
        assert realm.lead(held).status is Status.ROLLED_BACK
        _shows(at_a, at_b, "old")
        at_a.end()
        at_b.end()
        assert at_a.errors == at_b.errors == []
        with fl.connect(a.flight) as client:
            persist(client, TABLE)
        assert realm.states() == [(1, 300 + at_a.acknowledged * BATCH), (1, 300), (1, 0)]
        assert at_a.shown == at_b.shown == ["old", "new", "old"]


def test_rows_since_the_start_are_those_of_the_version_that_counts_where_daemons_are_behind(
    tmp_path: Path,
) -> None:
    """A daemon without a request since the switch reports an older manifest version."""
    with Daemon.start(tmp_path / "a", manifest__refresh="1h") as daemon:
        with fl.connect(daemon.flight) as client:
            put(client, TABLE, OLD)
            persist(client, TABLE)
        region = {"url": f"file://{tmp_path / 'a' / 'store'}", "endpoints": [daemon.flight]}
        realm = Realm(open_regions(push_config({"regions": {"a": region}}).regions))
        assert realm.push(NEW).status is Status.SERVING
        assert RegionDaemons((daemon.flight,)).persist(*TABLE).keys() == {1}
        held = realm.begin(NEW, "p2", PushPlan(replay_since="start"))
        assert realm.lead(held, Job(realm, NEW).hear).status is Status.SERVING
        assert realm.states() == [(3, len(NEW))]


def _ask_for_followers(flight: str) -> None:
    with fl.connect(flight) as client:
        assert act(client, "followers", namespace=TABLE[0], table=TABLE[1]) == []


def _shows(at_a: Clients, at_b: Clients, kind: str) -> None:
    """Wait until both daemons show a table."""
    for clients in (at_a, at_b):
        until(partial(clients.shows, kind), f"the {kind} table is shown")
        assert clients.errors == []


class SomeDaemon(fl.FlightServerBase):  # type: ignore[misc]
    """A server with only a daemon's actions about followers, or not even those."""

    def __init__(self, followers: list[dict[str, object]] | None) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._followers = followers
        self.prepared: list[dict[str, object]] = []

    @property
    def endpoint(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def do_action(self, context: object, action: fl.Action) -> list[bytes]:
        body = json.loads(action.body.to_pybytes())
        if self._followers is None:
            raise NotImplementedError(action.type)
        if action.type == "followers_prepare":
            self.prepared.append(body)
            return []
        return [json.dumps(each).encode() for each in self._followers]


def test_followers_that_are_alive_and_cannot_show_the_version_lag() -> None:
    def follower(name: str, **said: object) -> dict[str, object]:
        return {"name": name, "alive": True, "table_version": 1, "prepared": [], "more": 1, **said}

    there = [
        follower("behind"),
        follower("gone", alive=False),
        follower("ready", prepared=[2, 3]),
        follower("there", table_version=3),
    ]
    with SomeDaemon(there) as one, SomeDaemon([follower("also")]) as two, SomeDaemon(None) as old:
        daemons = RegionDaemons((one.endpoint, old.endpoint, two.endpoint))
        daemons.prepare(*TABLE, 3, "p1")
        assert daemons.lagging(*TABLE, 3) == ["also", "behind"]
        told = {"namespace": "shop", "table": "visits", "table_version": 3, "push_id": "p1"}
        assert one.prepared == two.prepared == [told]
    with SomeDaemon([{"name": 5}]) as odd, pytest.raises(RegionUnreachable, match=odd.endpoint):
        RegionDaemons((odd.endpoint,)).lagging(*TABLE, 3)
    with pytest.raises(RegionUnreachable, match=f"daemon {one.endpoint}: "):
        daemons.prepare(*TABLE, 3, "p1")


@pytest.mark.s3
def test_a_store_that_hangs_or_is_gone_is_unreachable_soon(server: S3Server) -> None:
    options = {**server.storage_options, "read_timeout_s": 2.0, "connect_timeout_s": 1.0}
    settings = {"x": {"url": "s3://lake/x", "store_options": options}}
    (region,) = open_regions(push_config({"regions": settings}).regions).values()
    realm = Realm({"x": region})
    record = realm.begin(NEW).record
    assert region.create_version(record) == (2, 1)
    server.fault("hang", times=1000)
    for ask in (region.written, region.discard):
        with pytest.raises(RegionUnreachable):
            ask(record)
    server.clear_faults()
    server.fault("denied", times=1)
    with pytest.raises(RegionUnreachable, match="StoreDenied"):
        region.written(record)
    server.clear_faults()
    assert region.written(record) is False
    assert region.discard(record)
