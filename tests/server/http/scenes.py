"""Example states of a daemon: healthy, store unreachable, disk full, many tables.

Each scene is a source of status with fifteen minutes of history. The figures come from a seed,
so that pictures change only when the page does.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable

import msgspec

from ingester.observability.alarms import WITHOUT_STORE
from ingester.observability.history import KEPT, STEP_S
from ingester.observability.logs import Problem
from ingester.observability.status import (
    Alarm,
    Buffered,
    DaemonStatus,
    DiskStatus,
    LogStatus,
    NamespaceStatus,
    OriginStatus,
    PersistedRows,
    PersistRun,
    PersistStatus,
    Rates,
    RateSpans,
    Reason,
    StoreState,
    StreamStatus,
    TableStatus,
)
from tests.server.http.serving import MIB, TurnableSource, example_status

GIB = 1 << 30
NOW = 1_795_716_000.0
"""2026-11-26 18:00:00 Z."""
UP_S = 266_400.0
FAULT_S = 240.0
"""Seconds since the store became unreachable or the disk filled."""
NAMESPACES = ("shop", "plant", "web")
NAMES = ("visits", "clicks", "orders", "payments", "sessions", "readings", "alerts", "prices")


def well() -> TurnableSource:
    """A healthy daemon that receives 600,000 rows a second into 27 tables."""
    source = TurnableSource()
    source.shown = _status(27)
    _fill(source, lambda _: {})
    return source


def store_away() -> TurnableSource:
    """The store has been unreachable for four minutes; rows are accepted and wait."""
    source = TurnableSource()
    error = "connection to https://store.example:9000 refused"
    said = (
        f"the store is unreachable: flushes wait, and queries of files fail; {WITHOUT_STORE}",
        "9 attempts to flush failed in the last minute; 2.1 GiB are waiting",
    )
    status = _status(27)
    source.shown = msgspec.structs.replace(
        status,
        alarms=[
            _alarm("store-away", "critical", said[0]),
            _alarm("persist-failing", "warning", said[1]),
        ],
        store_state=StoreState(
            state="away",
            since=_utc(NOW - FAULT_S),
            last_ok_at=_utc(NOW - FAULT_S - 2),
            last_error=error,
            reads=False,
            writes=False,
        ),
        oldest_unpersisted_s=FAULT_S + 31,
        persist=msgspec.structs.replace(
            status.persist, queued_jobs=88, queued_bytes=2150 * MIB, active=4, failed_attempts=37
        ),
        errors=[
            Problem(
                at=_utc(NOW - 20 * n),
                event="persist failed",
                message=f"{NAMES[n]} time_day=2026-11-26: {error}",
                level="warning",
                runbook="persist-failing",
            )
            for n in range(6)
        ],
    )

    def later(passed_s: float) -> dict[str, float | None]:
        queued = min(2150.0, passed_s * 9) * MIB
        return {"oldest_unpersisted_s": passed_s + 31, "queued_bytes": queued}

    _fill(source, later)
    return source


def disk_full() -> TurnableSource:
    """The log's disk is full: writes are refused, queries are answered."""
    source = TurnableSource()
    said = "the log's disk is full: writes are refused, queries continue"
    reason = Reason(code="disk_full", message="2 MiB left on the log's disk", retry_after_s=5.0)
    status = _status(27)
    source.shown = msgspec.structs.replace(
        status,
        admission=msgspec.structs.replace(status.admission, accepts_writes=False, reasons=[reason]),
        alarms=[_alarm("disk-full", "critical", said)],
        disk=msgspec.structs.replace(status.disk, log_free_bytes=2 * MIB, full=True),
        rates=RateSpans(),
        errors=[
            Problem(
                at=_utc(NOW - FAULT_S),
                event="disk is full",
                message="writes are refused: 2 MiB left on the log's disk",
                level="error",
                runbook="disk-full",
            )
        ],
    )
    gone = ("rows_per_s", "bytes_per_s", "operations_per_s")
    _fill(source, lambda _: dict.fromkeys(gone, 0.0) | {"write_p50_s": None, "write_p99_s": None})
    return source


def many_tables() -> TurnableSource:
    """A daemon with 1,000 open tables."""
    source = TurnableSource()
    source.shown = _status(1000)
    source.tables = _tables(1000)
    _fill(source, lambda _: {})
    return source


SCENES: dict[str, Callable[[], TurnableSource]] = {
    "well": well,
    "store_away": store_away,
    "disk_full": disk_full,
    "many_tables": many_tables,
}


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _alarm(name: str, severity: str, message: str) -> Alarm:
    since = _utc(NOW - FAULT_S)
    told = {"name": name, "severity": severity, "since": since, "message": message, "runbook": name}
    return msgspec.convert(told, Alarm)


def _status(tables: int) -> DaemonStatus:
    example, told = example_status(), _tables(tables)
    memory = msgspec.structs.replace(
        example.admission.memory,
        used_bytes=430 * MIB,
        by_kind={"buffer": 310 * MIB, "frozen": 90 * MIB, "job": 20 * MIB, "answer": 10 * MIB},
    )
    return msgspec.structs.replace(
        example,
        identity=msgspec.structs.replace(
            example.identity,
            store="s3://lake/ingest",
            uptime_s=266_400.0,
            started_at=_utc(NOW - 266_400),
        ),
        admission=msgspec.structs.replace(example.admission, memory=memory),
        rates=RateSpans(
            last_10s=Rates(
                rows_per_s=612e3, bytes_per_s=49e6, operations_per_s=310, queries_per_s=14.2
            ),
            last_60s=Rates(
                rows_per_s=598e3, bytes_per_s=48e6, operations_per_s=301, queries_per_s=13.9
            ),
        ),
        tables=sorted(told, key=lambda each: -each.buffered.bytes)[:100],
        counts={"tables": tables, "origins": 12, "namespaces": 3},
        persist=PersistStatus(
            queued_jobs=1,
            queued_bytes=14 * MIB,
            active=2,
            persisted=PersistedRows(rows=41_000_000_000, bytes=1900 * GIB, files=61_200),
            last=[_run(n) for n in range(5)],
        ),
        log=LogStatus(
            segments=9,
            bytes=560 * MIB,
            open_segment=8841,
            syncs=9_204_113,
            last_sync_s=0.0009,
            pending=3,
        ),
        origins=[
            OriginStatus(
                origin=f"collector-{n}",
                memory_sequence=812_000 + n,
                durable_sequence=811_400 + 31 * n,
                open=n < 9,
            )
            for n in range(12)
        ],
        streams=StreamStatus(open=6, stalled=0, waiting=2),
        namespaces=[
            NamespaceStatus(namespace=name, bytes=n * 90 * MIB, tables=9, writers=3)
            for n, name in enumerate(("shop", "plant", "web"), 1)
        ],
        store_state=StoreState(state="ok", since=_utc(NOW - UP_S), last_ok_at=_utc(NOW - 1)),
        disk=DiskStatus(
            log_free_bytes=61 * GIB, log_total_bytes=98 * GIB, spill_free_bytes=61 * GIB
        ),
        oldest_unpersisted_s=31.0,
        errors=[],
    )


def _run(number: int) -> PersistRun:
    return PersistRun(
        at=_utc(NOW - 4 - 7 * number),
        namespace=NAMESPACES[number % 3],
        table=f"{NAMES[number]}_{number:03}",
        partition="time_day=2026-11-26",
        rows=410_000 - 31_000 * number,
        bytes=(9 - number) * MIB,
        queued_s=0.02 * number,
        active_s=0.9 + 0.1 * number,
        total_s=0.9 + 0.12 * number,
    )


def _tables(count: int) -> list[TableStatus]:
    draw = random.Random(count)
    return [_table(n, draw) for n in range(count)]


def _table(number: int, draw: random.Random) -> TableStatus:
    rows = draw.randrange(20_000, 900_000)
    return TableStatus(
        namespace=NAMESPACES[number % 3],
        table=f"{NAMES[number % len(NAMES)]}_{number:03}",
        manifest_version=draw.randrange(100, 9000),
        buffered=Buffered(rows=rows, bytes=rows * 80, partitions=draw.randrange(1, 5)),
        persisted=PersistedRows(
            rows=rows * 900, bytes=rows * 20_000, files=draw.randrange(40, 900)
        ),
        oldest_buffered_s=draw.uniform(1, 31),
    )


def _fill(source: TurnableSource, later: Callable[[float], dict[str, float | None]]) -> None:
    """Fill the history ring; ``later`` gives the figures that differ since the fault."""
    draw = random.Random(35)
    for n in range(KEPT):
        at = NOW - (KEPT - 1 - n) * STEP_S
        wave = 1 + 0.12 * math.sin(n / 11) + draw.uniform(-0.06, 0.06)
        saw = (n % 24) / 24
        figures: dict[str, float | None] = {
            "rows_per_s": 600e3 * wave,
            "bytes_per_s": 48e6 * wave,
            "operations_per_s": 300 * wave,
            "queries_per_s": 14 * wave,
            "write_p50_s": 0.0021 * wave,
            "write_p99_s": 0.0074 * wave * draw.uniform(0.9, 1.4),
            "memory_bytes": (300 + 200 * saw) * MIB,
            "resident_bytes": (640 + 150 * saw) * MIB,
            "queued_bytes": 40 * MIB * saw * draw.random(),
            "log_bytes": (420 + 260 * saw) * MIB,
            "oldest_unpersisted_s": 20 + 25 * saw,
        }
        passed_s = at - (NOW - FAULT_S)
        source.ring.add(at, figures | (later(passed_s) if passed_s >= 0 else {}))
