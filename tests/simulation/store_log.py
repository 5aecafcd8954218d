"""The requests of one daemon's log in the store, counted in simulated time.

The product's own shipper and cleaner, under a clock that jumps to the next time at which anything
happens. Only the writers, and flushes every ``persist.max_age``, are simulated. Daemons share
nothing of the log, so that the requests of many are those of one, as often.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import trio
from trio.testing import MockClock

from ingester.store_log.cleaner import Cleaner
from ingester.store_log.shipper import ShipHooks, ShipLimits, Shipper
from persist.manifest import WriterIdentity
from tests.bench.report import Cell, Table
from tests.simulation.store import Latencies, Prices, SimulatedStore
from wal import Entry, RecordKind, Route, RouteState

HOUR_S = 3_600.0
MONTH_S = 30 * 86_400.0
FLUSH_S = 60.0
"""Rows are in files after this long. A longer time only keeps more objects."""
INTERVALS_S = (0.1, 1.0)
MANY = (1, 10, 1_000)
_REAL_S = 0.001
"""Real time without a runnable task before the clock jumps: threads carry out requests."""


@dataclass(frozen=True, slots=True)
class Writing:
    """How often a daemon's writers write at ``store``, and the simulated time it is counted for."""

    what: str
    every_s: float
    seconds: float


WRITINGS = (
    Writing("all the time", 0.03, 120.0),
    Writing("once a second", 1.0, 600.0),
    Writing("once a minute", 60.0, HOUR_S),
    Writing("never", math.inf, HOUR_S),
)


@dataclass(frozen=True, slots=True)
class LogRequests:
    """The requests of one daemon's store log."""

    writing: Writing
    interval_s: float
    requests: Counter[str]

    def an_hour(self, kind: str) -> float:
        """Requests of a kind per hour."""
        return self.requests[kind] * HOUR_S / self.writing.seconds

    def month(self, prices: Prices) -> float:
        """Dollars per month."""
        return prices.of(self.requests) * MONTH_S / self.writing.seconds


class _Daemon:
    """A shipper and a cleaner, and the segments of a local log that count for them."""

    def __init__(self, store: SimulatedStore, interval_s: float) -> None:
        writer = WriterIdentity("daemon-1", "run", 1)
        self._segment, self._seq = 1, 1
        self._route = Route("simulated/table")
        self._route.state = RouteState.SHIPPED
        self.cleaner = Cleaner(store, writer.ingester_id, writer.epoch)
        hooks = ShipHooks(
            shipped=lambda entries, error: None,
            flush=self._flush,
            catch_up=lambda: None,
            open_segment=lambda: self._segment,
            acknowledged=self.cleaner.note_acknowledged,
        )
        self.shipper = Shipper(store, writer, ShipLimits(interval_s), hooks)

    async def write(self, every_s: float) -> None:
        """Write a row at the pace until cancelled."""
        while every_s < math.inf:
            entry = Entry(RecordKind.OPERATION, [bytes(200)])
            entry.routes, entry.seq, entry.segment = (self._route,), self._seq, self._segment
            self._seq += 1
            assert self.shipper.takes(entry)
            self.shipper.submit([entry])
            await trio.sleep(every_s)

    async def flush(self) -> None:
        """Begin a segment and have the rows of those before it in files, until cancelled."""
        while True:
            await trio.sleep(FLUSH_S)
            self._segment += 1
            self.cleaner.keep_from(self._segment)

    async def _flush(self, table: str) -> None:
        raise AssertionError(f"{table} has been shipped from the start")


def count_log_requests(writing: Writing, interval_s: float) -> LogRequests:
    """Run one daemon's store log, and count from the time at which objects are also deleted."""
    store = SimulatedStore(Latencies(), _sleep, _seconds, Random(1))
    found = Counter[str]()

    async def live() -> None:
        daemon = _Daemon(store, interval_s)
        async with trio.open_nursery() as nursery:
            await nursery.start(daemon.shipper.run)
            nursery.start_soon(daemon.cleaner.run)
            nursery.start_soon(daemon.flush)
            nursery.start_soon(daemon.write, writing.every_s)
            await trio.sleep(1.5 * FLUSH_S)
            store.requests.clear()
            await trio.sleep(writing.seconds)
            found.update(store.requests)
            nursery.cancel_scope.cancel()

    trio.run(live, clock=MockClock(autojump_threshold=_REAL_S))
    return LogRequests(writing, interval_s, found)


def _sleep(seconds: float) -> None:
    trio.from_thread.run(trio.sleep, seconds)


def _seconds() -> float:
    return trio.from_thread.run_sync(trio.current_time)


def log_table(found: Sequence[LogRequests], prices: Prices) -> Table:
    """One row for each kind of writing and interval."""
    table = Table(
        "store-log",
        "The log in the store: requests of one daemon per hour, and dollars per month",
        [
            "writes at store",
            "interval",
            "PUT",
            "GET",
            "LIST",
            "DELETE",
            *(f"$, {daemons:,} daemon{'s' * (daemons > 1)}" for daemons in MANY),
        ],
        notes=[f"${prices.writes:g} for 1,000 PUT or LIST, ${prices.reads:g} for 1,000 GET"],
    )
    for each in found:
        counts = (each.an_hour(kind) for kind in ("create", "get", "list", "delete"))
        dollars = (daemons * each.month(prices) for daemons in MANY)
        cells: list[Cell] = [
            each.writing.what,
            f"{each.interval_s:g} s",
            *(f"{count:,.0f}" for count in counts),
            *(f"{each:,.2f}" for each in dollars),
        ]
        table.rows.append(dict(zip(table.columns, cells, strict=True)))
    return table
