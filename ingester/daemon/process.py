"""One daemon from start to stop: who starts when, who ends whom.

    lock ─ HTTP (not ready) ─ ``startup``: log recovered, marks, store, epoch ─ workers ─ replay
         ─ new segment ─ group commit ─ Flight ─ "ready" … SIGTERM … refuse ─ drain ─ persist ─ exit

Law of this file: an epoch is in the store before anything is replayed, the log takes nothing before
replay is over, and clients connect last. A stop undoes it in the other order; when its deadline
passes the log keeps what is left. The process ends by itself after its last sync: pyarrow's server
cannot be shut down while one client stalls.
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

import structlog
import trio

from ingester.config.settings import Settings, split_address
from ingester.config.sources import notify_values
from ingester.daemon.assembly import Runtime
from ingester.daemon.drain import Drain
from ingester.daemon.exit_codes import EXIT_DEADLINE, EXIT_DONE, exit_code
from ingester.daemon.flight_listener import check_address
from ingester.daemon.listening import listen
from ingester.daemon.open_folders import tell_open_folders
from ingester.daemon.process_tuning import (
    hand_over_soon,
    keep_grpc_silent,
    let_calls_poll,
    raise_descriptors,
)
from ingester.daemon.quota_reload import QuotaReload
from ingester.daemon.security import Security
from ingester.daemon.service_manager import ServiceManager
from ingester.daemon.shutdown import StopRequest, drain_and_stop
from ingester.daemon.startup import assemble, locked
from ingester.daemon.status_report import StatusReport
from ingester.daemon.watch import Watch
from ingester.memory.heap_settings import set_up_allocator
from ingester.observability.log_levels import LogLevels
from ingester.observability.logs import RecentProblems, configure_logs
from ingester.observability.tracing.collector import check_tracing
from ingester.query.spill import empty_spill_folder
from ingester.recovery.marks import note_epoch
from ingester.recovery.replay import Replay, ReplayLimits
from ingester.server.http.app import create_app
from ingester.server.http.entrance import Entrance, own_names
from ingester.server.http.server import HttpListener
from wal import LogIdentity

log = structlog.get_logger(__name__)

T = TypeVar("T")
Ready = Callable[[dict[str, Any]], None]


LAST_ANSWERS_S = 0.2
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class _Logs(NamedTuple):
    """What is known of the log: its last problems, and which events are written."""

    problems: RecentProblems
    levels: LogLevels


class _Doors(NamedTuple):
    """What the ways in show of the daemon, and by which rules."""

    report: StatusReport
    security: Security
    drain: Drain
    manager: ServiceManager


def serve(settings: Settings, on_ready: Ready, reread: Callable[[], Settings] | None = None) -> int:
    """Run a daemon until it is told to stop or has to, and return its exit code. Blocks.

    Args:
        on_ready: is called once, on the loop, when writes are accepted.
        reread: reads the settings again, for what is taken up by SIGHUP.
    """
    # pyarrow puts server tracebacks into clients' messages unless there are none.
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
            return trio.run(
                partial(_main, settings, on_ready, logs, reread or (lambda: settings)),
                strict_exception_groups=True,
            )
    except BaseException as exc:
        code = exit_code(exc, settings.data_dir)
        # Whoever waited has been answered on the loop; their threads still have to send it.
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
    security.reloading.add(quotas.look)
    empty_spill_folder(settings.data_dir / "spill")
    watch = Watch(settings, logs.problems, security.status)
    report = StatusReport(settings, logs.problems.newest_first, security.status, watch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        # What comes when the receiver has closed, as the process ends, changes nothing any more.
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        with trio.open_signal_receiver(*_SIGNALS) as signals:
            check_address(*split_address(settings.flight.listen))
            http_url = await nursery.start(partial(_serve_http, settings, report, security))
            stop = StopRequest()
            manager = ServiceManager(notify_values())
            nursery.start_soon(manager.run, report.phase)
            reload = partial(nursery.start_soon, manager.reload, security.reloading.ask)
            nursery.start_soon(_watch_signals, signals, stop, reload)
            nursery.start_soon(security.reloading.run)
            nursery.start_soon(security.doorkeeper.run)
            nursery.start_soon(logs.levels.run)
            runtime = await _unless_stopped(stop.asked, partial(assemble, settings, watch.watched))
            if runtime is None:
                log.info("stopped before the start was over")
                nursery.cancel_scope.cancel()
                return EXIT_DONE
            runtime.http_url = http_url
            runtime.log_levels = logs.levels
            quotas.namespaces = runtime.namespaces
            drain = Drain(runtime)
            report.show(runtime, drain.status)
            doors = _Doors(report, security, drain, manager)
            code = await _serve(runtime, doors, on_ready, stop)
        nursery.cancel_scope.cancel()
    return code


async def _unless_stopped(stop: trio.Event, work: Callable[[], Awaitable[T]]) -> T | None:
    """Return what ``work`` returns, or None when the stop comes first and cancels it."""
    result: list[T] = []
    async with trio.open_nursery() as nursery:

        async def run() -> None:
            result.append(await work())
            nursery.cancel_scope.cancel()

        nursery.start_soon(run)
        await stop.wait()
        nursery.cancel_scope.cancel()
    return result[0] if result else None


async def _serve(runtime: Runtime, doors: _Doors, on_ready: Ready, stop: StopRequest) -> int:
    async with trio.open_nursery() as workers:
        workers.start_soon(_end_when_fenced, runtime)
        workers.start_soon(runtime.flusher.run)
        workers.start_soon(runtime.freeze_policy.run)
        workers.start_soon(runtime.checkpoint_committer.run)
        workers.start_soon(runtime.heap_trim.run)
        workers.start_soon(runtime.snapshots.run)
        if runtime.spark_metadata is not None:
            workers.start_soon(runtime.spark_metadata.run)
        workers.start_soon(runtime.garbage_collector.run)
        workers.start_soon(runtime.queries.run)
        workers.start_soon(runtime.transforms.load_early)
        workers.start_soon(runtime.live.run)
        workers.start_soon(runtime.copies.run)
        workers.start_soon(runtime.push_watch.run)
        workers.start_soon(runtime.log_truncation.run)
        if await _unless_stopped(stop.asked, partial(replay_log, runtime)) is None:
            log.info("stopped before the log was replayed; it keeps everything")
            workers.cancel_scope.cancel()
            return EXIT_DEADLINE
        await workers.start(runtime.wal.run, runtime.wal_sink.apply, runtime.coalescer().make)
        # Nothing of it may be left to be released: rows that are in files, or another daemon's.
        await runtime.log_truncation.truncate()
        workers.start_soon(doors.drain.run)
        workers.start_soon(runtime.left_logs.run)
        security = doors.security
        listener = await listen(runtime, doors.report, security, doors.drain)
        security.open_at(listener)
        _settle_memory()
        runtime.state = "ready"
        on_ready(_ready_line(runtime))
        doors.manager.ready(doors.report.phase().said)
        await stop.asked.wait()
        doors.manager.stopping("stopping")
        await doors.drain.end()
        code = await drain_and_stop(runtime, stop)
        workers.cancel_scope.cancel()
    # Never shut down: that would wait for clients that stall. The process ends instead.
    assert listener.url
    return code


async def _serve_http(
    settings: Settings,
    report: StatusReport,
    security: Security,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    app = create_app(report, Entrance(security.access, own_names(settings.http)))
    host, port = split_address(settings.http.listen)
    listener = HttpListener(app, host, port, settings.http.idle_timeout, security.certificates)
    security.open_at(listener)
    await listener.run(task_status=task_status)


def _settle_memory() -> None:
    """Keep collections from walking what the start has made, which lives as long as the process.

    The write path makes no cycles; its many short-lived objects would trigger collections for
    nothing.
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
    """End the daemon when a part has noticed that another process has its identity."""
    await runtime.fenced.wait()
    assert runtime.fence is not None
    raise runtime.fence


async def replay_log(runtime: Runtime) -> bool:
    """Replay the log into the buffers and start it anew; true, as a stop gives none."""
    began = time.monotonic()
    recovered = runtime.recovered
    if recovered.torn_bytes:
        runtime.metrics.tail_cut(recovered.torn_bytes)
    replay = Replay(
        runtime.catalog,
        runtime.tree,
        runtime.origins,
        ReplayLimits(runtime.ledger, runtime.freeze_policy.after_group),
        runtime.writer.ingester_id,
    )
    report = await replay.run(runtime.wal, runtime.log_truncation.note_replaying)
    runtime.metrics.replayed(report.operations)
    runtime.replication.note_interrupted(replay.interrupted)
    writer = runtime.writer
    await runtime.wal.start(
        LogIdentity(writer.ingester_id, writer.incarnation, writer.epoch),
        first_seq=recovered.last_seq + 1,
    )
    await trio.to_thread.run_sync(note_epoch, runtime.settings.data_dir, writer)
    runtime.log_truncation.note_replaying(None)
    log.info(
        "log replayed",
        segments=len(recovered.segments),
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
