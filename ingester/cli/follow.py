"""``follow``: copies of tables until a signal, with progress on a terminal.

The main thread waits for a signal and shows the status of the copies; other threads do the work.
The labels of the metrics are bounded: the command's tables, the calls of a sink, and error codes.
The status is read at each scrape; only the calls of sinks are counted continuously.
"""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ingester.client import ClientError
from ingester.config.sources import load
from ingester.followers import CopyStatus, FollowedTable, Follower, FollowOptions, Seek
from ingester.followers.destination import open_destination
from ingester.shown_text import escaped

from .connecting import connect, connection_options, dialled
from .exits import USAGE, CommandFailed, say_failure, stopped_by_signals
from .metrics_server import MetricsAddress, MetricsServer
from .printing import print_json, print_table, say
from .query import asked_columns, asked_filter

LOOK_EVERY_S = 0.1
"""The interval of showing the status."""
ONCE_STORE_S = 5.0
"""How long ``--once`` waits for a store that cannot be reached."""


class FollowArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of the command line."""

    namespace: str
    tables: Sequence[str]
    into: str
    columns: str | None
    filter: str | None
    begin: str
    anew: bool
    once: bool
    name: str
    store: str | None
    config: Path | None


def run_follow(
    endpoint: str, asked: FollowArguments, http: MetricsAddress | None, as_json: bool
) -> None:
    """Follow until SIGINT or SIGTERM, or, with ``once``, until the copies are current.

    Raises:
        CommandFailed: Wrong usage.
        ClientError: A copy cannot be continued, or the daemon refused.
    """
    columns, filter_ = asked_columns(asked.columns), asked_filter(asked.filter)
    begin = _begin(asked.begin)
    stopped = stopped_by_signals()
    # A wrong address or name is reported immediately, not after the retries.
    with connect(endpoint) as probe:
        for table in asked.tables:
            probe.schema(asked.namespace, table)
    metrics = FollowMetrics()
    with contextlib.ExitStack() as stack:
        destination = open_destination(asked.into, say_failure)
        options = FollowOptions(
            name=asked.name,
            observer=metrics.observe,
            connection=connection_options(),
            store_s=ONCE_STORE_S if asked.once else None,
        )
        follower = Follower(
            dialled(endpoint), destination.sink, asked.store, _store_options(asked.config), options
        )
        for table in asked.tables:
            seek = begin if asked.anew else None
            follower.follow(asked.namespace, table, columns, filter_, seek, begin)
        metrics.tell_of(follower.status)
        if http is not None:
            server = MetricsServer(http, metrics.registry, lambda: unready(follower.status))
            stack.callback(server.close)
            say(f"metrics on {server.url}/metrics")
        # Closed first, so that a sink that waits for a reader of the file stops waiting.
        stack.callback(follower.close)
        stack.callback(destination.close)
        follower.start()
        try:
            _watch(follower, stopped, asked.once)
        finally:
            statuses = follower.status()
            if sys.exc_info()[0] is None or any(s.progress.put_rows for s in statuses):
                _print_results(statuses, as_json)


def _watch(follower: Follower, stopped: threading.Event, once: bool) -> None:
    """Return after a signal, or when all copies are current. Raises the error of a copy."""
    with _shown() as show:
        while not stopped.wait(LOOK_EVERY_S):
            statuses = follower.status()
            show(statuses)
            if any(status.phase == "failed" for status in statuses):
                follower.run()
            if once and all(s.progress.current_at is not None for s in statuses):
                return


def _begin(text: str) -> Seek:
    if text == "beginning":
        return "beginning"
    if text == "tail":
        return "tail"
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as exc:
        raise CommandFailed(
            f"--from {text!r} is neither beginning, tail nor a time such as 2026-11-21T10:00:00Z",
            USAGE,
        ) from exc
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _store_options(config: Path | None) -> dict[str, Any]:
    return dict(load({}, file=config).settings.store_options)


Show = Callable[[Sequence[CopyStatus]], None]


@contextlib.contextmanager
def _shown() -> Iterator[Show]:
    """A function that shows statuses: progress bars on a terminal, else a line for each phase."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[told]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[tuple[str, str], Any] = {}

        def show(statuses: Sequence[CopyStatus]) -> None:
            for status in statuses:
                name = (status.namespace, status.table)
                if name not in tasks:
                    tasks[name] = bars.add_task("/".join(name), total=None, told="")
                done, total = status.progress.bytes
                if status.phase == "live":
                    done = total = max(total, 1)
                bars.update(
                    tasks[name], completed=done, total=total or None, told=escaped(_text(status))
                )

        yield show


class _Lines:
    """Prints each change of a copy's phase, error and coming version."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, str], tuple[str | None, ...]] = {}

    def __call__(self, statuses: Sequence[CopyStatus]) -> None:
        for status in statuses:
            error = status.error if status.phase == "waiting" else None
            name = (status.namespace, status.table)
            now = (status.phase, error, status.coming)
            if self._said.get(name) != now and status.phase != "failed":
                self._said[name] = now
                say(f"{'/'.join(name)}: {_text(status)}")


def _text(status: CopyStatus) -> str:
    progress = status.progress
    if status.error is not None and status.phase == "waiting":
        return f"{status.phase}: {' '.join(status.error.split())}"
    if status.phase == "filling" and progress.files[1]:
        return f"filling, {progress.files[0]:,} of {progress.files[1]:,} files"
    if status.phase != "live":
        return status.phase
    lag = progress.lag_s()
    late = "" if lag is None else f", {lag:.1f} s behind"
    coming = "" if status.coming is None else f"; {status.coming}"
    return f"live, {progress.put_rows:,} rows put{late}{coming}"


def _print_results(statuses: Sequence[CopyStatus], as_json: bool) -> None:
    facts = [
        {
            "namespace": status.namespace,
            "table": status.table,
            "table_version": status.table_version,
            "version": status.version,
            "phase": status.phase,
            "error": status.error,
            "files": status.progress.files[0],
            "put_rows": status.progress.put_rows,
            "deleted_rows": status.progress.deleted_rows,
        }
        for status in statuses
    ]
    if as_json:
        print_json(facts)
        return
    headings = ["namespace", "table", "version", "phase", "files", "rows put", "keys deleted"]
    print_table(
        headings,
        [[v for k, v in fact.items() if k not in ("error", "table_version")] for fact in facts],
    )


_CALL_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_TABLE = ("namespace", "table")
Statuses = Callable[[], Sequence[CopyStatus]]


class FollowMetrics:
    """The registry of a follower's metrics."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._seconds = Histogram(
            "ingester_follower_call_seconds",
            "Calls of a sink: put, put_files, delete, commit and others",
            (*_TABLE, "call"),
            buckets=_CALL_S,
            registry=self.registry,
        )
        self._errors = Counter(
            "ingester_follower_errors",
            "Calls of a sink that raised",
            (*_TABLE, "call", "code"),
            registry=self.registry,
        )

    def observe(
        self, table: FollowedTable, call: str, seconds: float, error: BaseException | None
    ) -> None:
        """Count a call of a sink."""
        self._seconds.labels(table.namespace, table.table, call).observe(seconds)
        if error is not None:
            code = error.code if isinstance(error, ClientError) else "sink"
            self._errors.labels(table.namespace, table.table, call, code).inc()

    def tell_of(self, statuses: Statuses) -> None:
        """Register the status of each table, as returned by ``statuses``."""
        self.registry.register(_Progress(statuses))


class _Progress(Collector):
    """Collects the status of each table."""

    def __init__(self, statuses: Statuses) -> None:
        self._statuses = statuses

    def describe(self) -> list[Metric]:
        """Empty: the tables are not known yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        statuses = self._statuses()
        for name, text, value in _NUMBERS:
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = kind(f"ingester_follower_{name}", text, labels=_TABLE)
            for status in statuses:
                number = value(status)
                if number is not None:
                    family.add_metric((status.namespace, status.table), number)
            yield family


_NUMBERS: tuple[tuple[str, str, Callable[[CopyStatus], float | None]], ...] = (
    ("up", "1 while the copy is live", lambda s: float(s.phase == "live")),
    ("lag_seconds", "Age of the copy", lambda s: s.progress.lag_s()),
    (
        "lag_operations",
        "Operations that the copy lacked at the daemon's last answer",
        lambda s: s.progress.lag_operations,
    ),
    ("lag_rows", "Rows that the daemon has and the copy lacks", lambda s: s.progress.lag_rows),
    ("rows_put_total", "Rows written to the copy since the start", lambda s: s.progress.put_rows),
    ("rows_deleted_total", "Keys deleted since the start", lambda s: s.progress.deleted_rows),
    ("version", "Manifest version whose files the copy has", lambda s: s.version),
    ("table_version", "Version of the table as a whole", lambda s: s.table_version),
    ("fill_files", "Files of the version being filled", lambda s: s.progress.files[1]),
    ("fill_files_done", "Files of the version already in the copy", lambda s: s.progress.files[0]),
    ("fill_bytes", "Bytes of the version being filled", lambda s: s.progress.bytes[1]),
    ("fill_bytes_done", "Bytes of the version already in the copy", lambda s: s.progress.bytes[0]),
)


def unready(statuses: Statuses) -> str:
    """A line for each copy that is not live."""
    late = [s for s in statuses() if s.phase != "live"]
    return "".join(f"{s.namespace}/{s.table}: {s.phase}\n" for s in late)
