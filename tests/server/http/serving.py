"""A real HTTP server for the tests, with a status that tests can change.

The server runs on trio in a thread of its own, as in the daemon. Requests are made from the
test's thread with ``http.client``.
"""

import http.client
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import trio
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette

from ingester.observability.history import HistoryRing
from ingester.observability.logs import Problem
from ingester.observability.status import (
    Admission,
    Alarm,
    Buffered,
    DaemonStatus,
    History,
    Identity,
    LogStatus,
    Memory,
    OriginStatus,
    PersistedRows,
    PersistRun,
    PersistStatus,
    Rates,
    RateSpans,
    Reason,
    State,
    StreamStatus,
    TableStatus,
)
from ingester.observability.status_lists import PageRequest, StatusPage, page_of
from ingester.observability.table_detail import TableView
from ingester.server.auth.rights import Sees
from ingester.server.http.app import Purpose, create_app
from ingester.server.http.server import HttpListener, ListenError
from ingester.server.tls import Certificates
from ingester.sql.engine import SqlEngine
from persist.store import ObjectStore

MIB = 1 << 20
IDLE_S = 2.0


def example_status(state: State = "ready", reasons: list[Reason] | None = None) -> DaemonStatus:
    """A status in which every field is filled."""
    refused = reasons or []
    identity = Identity(
        ingester_id="pod-0",
        incarnation="5f0c",
        epoch=3,
        version="0.1.0",
        pid=4711,
        started_at="2026-11-21T07:00:00Z",
        uptime_s=5025.0,
        state=state,
        flight="grpc://127.0.0.1:8082",
        http="http://127.0.0.1:8080",
        store="s3://bucket/prefix",
    )
    memory = Memory(
        used_bytes=800 * MIB,
        limit_bytes=1024 * MIB,
        low_bytes=512 * MIB,
        high_bytes=922 * MIB,
        by_kind={"buffer": 500 * MIB, "frozen": 200 * MIB, "answer": 100 * MIB},
    )
    run = PersistRun(
        at="2026-11-21T08:23:00Z",
        namespace="sensors",
        table="readings",
        partition="time_day=2026-11-21",
        rows=1_000_000,
        bytes=12 * MIB,
        queued_s=0.02,
        active_s=1.4,
        total_s=1.42,
    )
    return DaemonStatus(
        identity=identity,
        admission=Admission(accepts_writes=not refused, reasons=refused, memory=memory),
        rates=RateSpans(
            last_10s=Rates(rows_per_s=1.2e6, bytes_per_s=48e6, operations_per_s=120.0),
            last_60s=Rates(rows_per_s=9e5, queries_per_s=0.5),
        ),
        tables=[
            TableStatus(
                namespace="sensors",
                table="readings",
                manifest_version=41,
                buffered=Buffered(rows=250_000, bytes=30 * MIB, partitions=2),
                persisted=PersistedRows(rows=90_000_000, bytes=900 * MIB, files=41),
                oldest_buffered_s=12.5,
            )
        ],
        persist=PersistStatus(queued_jobs=1, queued_bytes=MIB, active=1, last=[run]),
        log=LogStatus(segments=2, bytes=64 * MIB, open_segment=7, syncs=12, last_sync_s=0.0008),
        origins=[OriginStatus(origin="a", memory_sequence=17, durable_sequence=12, open=True)],
        streams=StreamStatus(open=2, stalled=1),
        errors=[Problem(at="2026-11-21T08:00:00Z", event="store was away", message="timed out")],
    )


@dataclass
class TurnableSource:
    """A fake daemon state that tests can change."""

    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    is_live: bool = True
    not_ready: list[str] = field(default_factory=list)
    refuses: list[str] = field(default_factory=list)
    away: list[str] = field(default_factory=list)
    ring: HistoryRing = field(default_factory=HistoryRing)
    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    shown: DaemonStatus = field(default_factory=example_status)
    tables: list[TableStatus] = field(default_factory=list)
    """All tables, if there are more than the status lists."""
    failure: Exception | None = None
    views: dict[tuple[str, str], TableView] = field(default_factory=dict)
    store: ObjectStore | None = None
    sql: SqlEngine | str = "starting"

    def live(self) -> bool:
        return self.is_live

    def readiness(self, purpose: Purpose) -> list[str]:
        return self.not_ready + {"any": [], "query": self.away, "write": self.refuses}[purpose]

    def alarms(self) -> list[Alarm]:
        return self.shown.alarms

    def answered(self, route: str, status: int) -> None:
        self.answers[route, status] += 1

    def history(self) -> History:
        return self.ring.history(0.0, 0.0)  # times are seconds since 1970

    def status(self, sees: Sees | None = None) -> DaemonStatus:
        if self.failure is not None:
            raise self.failure
        return self.shown

    def table(self, namespace: str, table: str) -> TableView | None:
        return self.views.get((namespace, table))

    def open_store(self) -> ObjectStore | str:
        return self.store or "the store is unreachable"

    def open_sql(self) -> SqlEngine | str:
        return self.sql

    def page(self, asked: PageRequest, sees: Sees | None) -> StatusPage:
        asked.check(["tables"])
        keyed = (
            (f"{each.namespace}/{each.table}", each)
            for each in self.tables or self.status(sees).tables
        )
        return page_of(asked, keyed, lambda each: each)


@dataclass(frozen=True)
class Answer:
    """An HTTP response, with header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class RunningServer:
    """A server in a thread; ``stop`` may be called twice."""

    def __init__(
        self,
        app: Starlette,
        host: str = "127.0.0.1",
        port: int = 0,
        certificates: Certificates | None = None,
    ) -> None:
        self.url = ""

        def make() -> HttpListener:
            return HttpListener(app, host, port, IDLE_S, certificates)

        self._make = make
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._started.wait(10)
        self._raise_failure()

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as exc:
            self._failure = exc
        self._started.set()

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as nursery:
            self._scope = nursery.cancel_scope
            try:
                self._listener = self._make()
                self.url = await nursery.start(self._listener.run)
            except ListenError as exc:
                self._failure = exc
            self._started.set()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            self._thread.join(10)
            raise self._failure

    def renew(self, certificates: Certificates) -> None:
        """Replace the listener's certificates, and wait until a connection shows the new one."""
        trio.from_thread.run(self._listener.renew, certificates, trio_token=self._token)

    def begin_stop(self) -> None:
        """Cancel the server and return at once."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._scope.cancel)

    def stop(self) -> float:
        """Stop the server; returns the seconds that it took, at most 20."""
        begun = time.monotonic()
        self.begin_stop()
        self._thread.join(20)
        assert not self._thread.is_alive(), "the server did not stop"
        self._raise_failure()
        return time.monotonic() - begun

    @property
    def address(self) -> tuple[str, int]:
        """The host and port to connect to."""
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        assert parts.port is not None
        return parts.hostname, parts.port

    def request(self, path: str, method: str = "GET", **headers: str) -> Answer:
        """Make one request on a new connection."""
        return self._request(path, method, None, headers)

    def post(self, path: str, body: bytes, **headers: str) -> Answer:
        """Post a body on a new connection."""
        return self._request(path, "POST", body, headers)

    def _request(
        self, path: str, method: str, body: bytes | None, headers: dict[str, str]
    ) -> Answer:
        connection = http.client.HTTPConnection(*self.address, timeout=10)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, names, response.read())
        finally:
            connection.close()


@contextmanager
def serving(source: TurnableSource) -> Iterator[RunningServer]:
    """Run the daemon's own app over ``source``; stopped at the end."""
    server = RunningServer(create_app(source))
    try:
        yield server
    finally:
        server.stop()
