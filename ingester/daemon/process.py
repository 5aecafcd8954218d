"""One daemon from start to stop: which task starts when, and what ends it.

    lock ─ HTTP (not ready) ─ ``startup``: log recovered, marks, store, epoch ─ tasks ─ replay
         ─ new segment ─ group commit ─ Flight ─ "ready" … SIGTERM … refuse ─ drain ─ flush ─ exit

An epoch is in the store before anything is replayed, the log accepts nothing before the replay is
finished, and clients connect last. The stop order is the nesting of the nurseries: tasks that serve
a running daemon are inside those that serve the process. pyarrow's server cannot be shut down while
a client stalls, so the process exits after its last sync.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import structlog
import trio

from ingester.config.settings import Settings, split_address
from ingester.config.sources import notify_values
from ingester.daemon.assembly import Runtime
from ingester.daemon.drain import Drain
from ingester.daemon.exit_codes import EXIT_DEADLINE, EXIT_DONE, exit_code
from ingester.daemon.listening import check_address, listen
from ingester.daemon.process_tuning import (
    convert_once,
    hand_over_soon,
    keep_grpc_silent,
    let_calls_poll,
    raise_descriptors,
)
from ingester.daemon.reloading import QuotaReload
from ingester.daemon.security import Security
from ingester.daemon.service_manager import ServiceManager
from ingester.daemon.shutdown import StopRequest, drain_and_stop
from ingester.daemon.startup import assemble, locked, tell_open_folders
from ingester.daemon.status import StatusPublisher
from ingester.memory.heap_settings import set_up_allocator
from ingester.observability.log_levels import LogLevels
from ingester.observability.logs import RecentProblems, configure_logs
from ingester.observability.tracing.collector import check_tracing
from ingester.query.spill import empty_spill_folder
from ingester.recovery.adopt_store import tell_lost
from ingester.recovery.marks import note_epoch
from ingester.recovery.replay import Replay, ReplayLimits
from ingester.server.http.app import create_app
from ingester.server.http.entrance import Entrance, own_names
from ingester.server.http.server import HttpListener
from ingester.store_log.reading import cursors
from persist.table import TableKey
from wal import LogIdentity

log = structlog.get_logger(__name__)

T = TypeVar("T")
Ready = Callable[[dict[str, Any]], None]

LAST_ANSWERS_S = 0.2
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class _Logs(NamedTuple):
    """The log's last problems and its levels."""

    problems: RecentProblems
    levels: LogLevels


class _Around(NamedTuple):
    """What serves the process, from before the daemon has an epoch."""

    status: StatusPublisher
    levels: LogLevels
    security: Security
    manager: ServiceManager


def serve(settings: Settings, on_ready: Ready, reread: Callable[[], Settings] | None = None) -> int:
    """Run a daemon until it stops, and return its exit code. Blocks.

    Args:
        on_ready: called once, on the loop, when writes are accepted.
        reread: reads the current settings, for a reload by SIGHUP.
    """
    # pyarrow puts the server's tracebacks into clients' messages otherwise.
    sys.tracebacklimit = 0
    set_up_allocator()
    raise_descriptors()
    let_calls_poll()
    keep_grpc_silent()
    hand_over_soon()
    levels = LogLevels(settings.log.level)
    logs = _Logs(configure_logs(levels, settings.log.format), levels)
    try:
        check_tracing(settings.tracing)
        with locked(settings.data_dir):
            tell_open_folders(settings)
            convert_once()
            return trio.run(
                partial(_main, settings, on_ready, logs, reread or (lambda: settings)),
                strict_exception_groups=True,
            )
    except BaseException as exc:
        has_log = settings.wal.disk == "on"
        code = exit_code(exc, settings.data_dir if has_log else None)
        # All calls are answered on the loop; their threads still have to send the answers.
        time.sleep(LAST_ANSWERS_S)
        return code


async def _main(
    settings: Settings,
    on_ready: Ready,
    logs: _Logs,
    reread: Callable[[], Settings],
) -> int:
    security = Security(settings)
    quotas = QuotaReload(settings.quotas, reread)
    security.reloading.add(quotas.check)
    empty_spill_folder(settings.data_dir / "spill")
    status = StatusPublisher(settings, logs.problems, logs.levels, security.status)

    def audit(what: str, table: TableKey) -> None:
        security.access.audit.noted(what, "done", namespace=table[0], table=table[1])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(status.run)
        # Signals that arrive after the receiver has closed are ignored.
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        with trio.open_signal_receiver(*_SIGNALS) as signals:
            check_address(*split_address(settings.flight.listen))
            http_url = await nursery.start(partial(_serve_http, settings, status, security))
            stop = StopRequest()
            manager = ServiceManager(notify_values())
            nursery.start_soon(manager.run, status.phase)
            reload = partial(nursery.start_soon, manager.reload, security.reloading.ask)
            nursery.start_soon(_watch_signals, signals, stop, reload)
            nursery.start_soon(security.reloading.run)
            nursery.start_soon(security.doorkeeper.run)
            nursery.start_soon(logs.levels.run)
            start = partial(assemble, settings, status.watched, status.metrics, audit)
            runtime = await _unless_stopped(stop.asked, start)
            if runtime is None:
                log.info("stopped before the start was over")
                nursery.cancel_scope.cancel()
                return EXIT_DONE
            runtime.http_url = http_url
            quotas.namespaces = runtime.namespaces
            around = _Around(status, logs.levels, security, manager)
            code = await _serve(runtime, around, on_ready, stop)
        nursery.cancel_scope.cancel()
    return code


async def _unless_stopped(stop: trio.Event, work: Callable[[], Awaitable[T]]) -> T | None:
    """Return the result of ``work``, or None if the stop comes first and cancels it."""
    result: list[T] = []
    async with trio.open_nursery() as nursery:

        async def run() -> None:
            result.append(await work())
            nursery.cancel_scope.cancel()

        nursery.start_soon(run)
        await stop.wait()
        nursery.cancel_scope.cancel()
    return result[0] if result else None


async def _serve(runtime: Runtime, around: _Around, on_ready: Ready, stop: StopRequest) -> int:
    status, security = around.status, around.security
    drain = Drain(runtime)
    status.show(runtime, drain.status)
    async with trio.open_nursery() as workers:
        workers.start_soon(_end_when_fenced, runtime)
        for task in runtime.tasks:
            workers.start_soon(task)
        if await _unless_stopped(stop.asked, partial(replay_log, runtime)) is None:
            log.info("stopped before the log was replayed; it keeps everything")
            workers.cancel_scope.cancel()
            return EXIT_DEADLINE
        write = runtime.write
        shipper = runtime.store_log.shipper
        runtime.hold_replayed()
        await workers.start(shipper.run)
        make = write.coalescer().make
        await workers.start(runtime.wal.run, write.operation_log.apply, make, shipper)
        if shipper.opens:
            await _unless_stopped(stop.asked, shipper.opened.wait)
            if not shipper.opened.is_set():
                workers.cancel_scope.cancel()
                return EXIT_DONE
        # Replayed segments may be done already: their rows are in files or another daemon's.
        await runtime.flush.log_truncation.truncate()
        workers.start_soon(drain.run)
        workers.start_soon(runtime.left_logs.run)
        listener = await listen(runtime, status, around.levels, security, drain)
        security.open_at(listener)
        _settle_memory()
        runtime.state = "ready"
        on_ready(_ready_line(runtime))
        around.manager.ready(status.phase().said)
        await stop.asked.wait()
        around.manager.stopping("stopping")
        await drain.end()
        code = await drain_and_stop(runtime, stop)
        workers.cancel_scope.cancel()
    # The Flight server is not shut down: that would wait for stalled clients.
    assert listener.url
    return code


async def _serve_http(
    settings: Settings,
    status: StatusPublisher,
    security: Security,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    entrance = Entrance(security.access, own_names(settings.http))
    app = create_app(status, entrance, settings.store_options)
    host, port = split_address(settings.http.listen)
    listener = HttpListener(app, host, port, settings.http.idle_timeout, security.certificates)
    security.open_at(listener)
    await listener.run(task_status=task_status)


def _settle_memory() -> None:
    """Exclude the objects of the start, which live as long as the process, from collections.

    The write path makes no reference cycles, and its many short-lived objects would trigger
    collections without effect.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


async def _watch_signals(signals: Any, stop: StopRequest, reload: Callable[[], None]) -> None:
    async for number in signals:
        log.info("signal received", signal=signal.Signals(number).name)
        if number == signal.SIGHUP:
            reload()
        else:
            stop.ask(impatient=number == signal.SIGINT)


async def _end_when_fenced(runtime: Runtime) -> None:
    """End the daemon when another process has taken over its identity."""
    await runtime.fenced.wait()
    assert runtime.fence is not None
    raise runtime.fence


async def replay_log(runtime: Runtime) -> bool:
    """Replay the log into the buffers, and begin a new segment. Returns true."""
    began = time.monotonic()
    recovered, tables = runtime.recovered, runtime.tables
    truncation = runtime.flush.log_truncation
    if recovered.torn_bytes:
        runtime.metrics.tail_cut(recovered.torn_bytes)
    replay = Replay(
        tables.catalog,
        tables.tree,
        tables.origins,
        ReplayLimits(runtime.ledger, runtime.flush.freeze_policy.after_group),
        runtime.writer.ingester_id,
    )
    store_log = runtime.store_log
    shipped = cursors(runtime.store, store_log.to_read, recovered.segments, pa.allocate_buffer)
    tell_lost(store_log.lost)
    report = await replay.run(runtime.wal, truncation.note_replaying, shipped)
    runtime.metrics.replayed(report.operations)
    runtime.replication.service.note_interrupted(replay.interrupted)
    writer, diskless = runtime.writer, runtime.settings.wal.disk == "off"
    await runtime.wal.start(
        LogIdentity(writer.ingester_id, writer.incarnation, writer.epoch),
        first_seq=max(recovered.last_seq, tables.tree.applied_seq) + 1,
        begun=None if diskless else partial(note_epoch, runtime.settings.data_dir, writer),
    )
    truncation.note_replaying(None)
    log.info(
        "log replayed",
        segments=len(recovered.segments),
        log_objects=len(store_log.to_read),
        operations=report.operations,
        rows=report.rows,
        rows_already_in_files=report.skipped_rows - report.foreign_rows,
        rows_of_origins_taken_over=report.foreign_rows,
        seconds=round(time.monotonic() - began, 3),
    )
    return True


def _ready_line(runtime: Runtime) -> dict[str, Any]:
    return {
        "event": "ready",
        "flight": runtime.flight_url,
        "http": runtime.http_url,
        "ingester_id": runtime.writer.ingester_id,
        "incarnation": runtime.writer.incarnation,
        "epoch": runtime.writer.epoch,
        "pid": os.getpid(),
    }
