"""A daemon's parts in this process, and a store log that gives entries back when the test says so.

async with shipping_daemon(tmp_path, "ships") as daemon:      tables of these names ship
    write = await daemon.writer("ships", origin="o")
    write.send(1)
    await daemon.written(1)                                    it is in the local log
    await daemon.give_back()                                   it is in the store
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import trio
from prometheus_client import CollectorRegistry

from ingester.buffer import TableBuffer
from ingester.config.settings import ManifestSettings, PersistSettings, Settings, WalSettings
from ingester.daemon import process
from ingester.daemon.assembly import Found, Identified, Runtime
from ingester.daemon.startup import log_settings
from ingester.observability.metrics import Metrics
from ingester.query.live_groups import GoneOperation, Position
from ingester.query.ticket import Ticket
from ingester.write.acknowledgement import PutAnswer
from ingester.write.operation_maker import OperationMaker
from ingester.write.stream import Outcome, Write, WriteStream
from ingester.write.streams import Target
from persist.manifest import WriterIdentity, claim_epoch
from persist.store import open_store
from tests.drivers.waiting import PATIENCE_S
from wal import Entry, Log, LogError, Route, RouteState, Shipping

NAMESPACE = "ns"
SCHEMA = pa.schema({"i": pa.int64()})


class HeldShipping:
    """A :class:`wal.Shipping` whose entries wait for the test."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = set(names)
        """The tables whose entries ask for the store."""
        self.taken: list[Entry] = []
        self.raised: list[Route] = []

    def takes(self, entry: Entry) -> bool:
        asks = any(route.name.split("/")[1] in self.names for route in entry.routes)
        if not (asks or entry.at_store or any(route.ships for route in entry.routes)):
            return False
        for route in entry.routes:
            if not route.ships:
                route.state = RouteState.HELD
                self.raised.append(route)
        return True

    def submit(self, entries: Sequence[Entry]) -> None:
        self.taken += entries

    def announce(self) -> None:
        """No-op: the test flushes."""

    def take(self, table: str | None = None) -> Entry | None:
        """Remove the oldest entry, or the oldest one of a table if no other one must precede it."""
        before: set[Route] = set()
        for number, entry in enumerate(self.taken):
            held = any(route.state is RouteState.HELD for route in entry.routes)
            names = [route.name for route in entry.routes]
            if table is None or f"{NAMESPACE}/{table}" in names:
                if held or before.intersection(entry.routes):
                    return None
                return self.taken.pop(number)
            before.update(entry.routes)
        return None


@dataclass
class Writer:
    """A stream of batches with one row each, whose number is its sequence if it has an origin."""

    stream: WriteStream
    heard: trio.MemoryReceiveChannel[Outcome]

    def send(self, number: int) -> None:
        """Append a batch to the log."""
        stream = self.stream
        batch = pa.record_batch({"i": pa.array([number], pa.int64())})
        write = Write(stream, None if stream.origin is None else number)
        numbered = stream.numbered(write.sequence)
        operation = OperationMaker(1 << 20).make(stream.plan, batch, numbered)
        stream.admit_operation(operation)
        if not (operation.admitted_bytes and stream.append(write, operation, here=False)):
            stream.decide(write, operation)

    async def answer(self) -> PutAnswer:
        """The next answer."""
        with trio.fail_after(PATIENCE_S):
            outcome = await self.heard.receive()
        assert isinstance(outcome, PutAnswer), outcome
        return outcome

    async def write(self, number: int) -> PutAnswer:
        self.send(number)
        return await self.answer()


@dataclass
class ShippingDaemon:
    """The parts of a daemon, without servers and signals."""

    runtime: Runtime
    shipping: HeldShipping
    writers: dict[str, Writer] = field(default_factory=dict)

    async def writer(self, table: str, origin: str | None = None, first: int = 1) -> Writer:
        """Open a stream to a table, and take the origin over."""
        send, heard = trio.open_memory_channel[Outcome](1000)
        token, writes = trio.lowlevel.current_trio_token(), self.runtime.write.writes

        def deliver(outcomes: list[Outcome]) -> None:
            for outcome in outcomes:
                token.run_sync_soon(send.send_nowait, outcome)

        target = Target(NAMESPACE, table, origin)
        opened = await writes.open(target, SCHEMA, deliver, checked=0)
        assert isinstance(opened, WriteStream)
        if origin is not None:
            await writes.begin(opened, first)
        return Writer(opened, heard)

    def table(self, name: str) -> TableBuffer:
        return self.runtime.tables.tree.tables[NAMESPACE, name]

    async def shipped(self, count: int) -> None:
        """Return when that many entries wait for the store."""
        with trio.fail_after(PATIENCE_S):
            while len(self.shipping.taken) < count:
                await trio.sleep(0.001)

    async def give_back(self, table: str | None = None, error: LogError | None = None) -> bool:
        """Let the store have the oldest entry; False if there is none that may be."""
        entry = self.shipping.take(table)
        if entry is None:
            return False
        await trio.to_thread.run_sync(self.runtime.wal.shipped, [entry], error)
        self.runtime.wal.catch_up()
        return True

    async def persist(self, table: str) -> None:
        """Flush a table; its route is SHIPPED afterwards if it was HELD."""
        self.runtime.wal.catch_up()
        await self.runtime.flush.persist(NAMESPACE, table, timeout_s=PATIENCE_S)
        for route in self.shipping.raised:
            if route is self.table(table).route:
                route.state = RouteState.SHIPPED

    def position(self, table: str) -> Position:
        return self.runtime.query.live_tails.now(self.table(table))

    async def live(self, table: str, after: Position, version: int) -> tuple[list[int], Position]:
        """The rows after a position, and the next position."""
        tails = self.runtime.query.live_tails
        found = tails.snapshot(self.table(table), after, version)
        assert not isinstance(found, GoneOperation), found
        rows: list[int] = []
        for group in found.groups:
            kept = tails.rows(group.handle)
            assert kept is not None
            every = [i for chunk in kept.chunks() for i in chunk.batch["i"].to_pylist()]
            rows += every[group.begin : group.end]
        assert not found.more
        return rows, found.position

    async def query(self, table: str) -> tuple[list[int], int]:
        """All rows, and the sequence of the snapshot."""
        self.runtime.wal.catch_up()
        answer = await self.runtime.query.queries.open(Ticket(NAMESPACE, table))
        sequence = answer.snapshot.sequence

        def read() -> list[int]:
            return [i for part in answer for i in part.batch["i"].to_pylist()]

        return sorted(await trio.to_thread.run_sync(read)), sequence


@asynccontextmanager
async def shipping_daemon(
    folder: Path, *names: str, really: bool = False
) -> AsyncIterator[ShippingDaemon]:
    """A daemon whose tables of these names ship.

    Args:
        really: whether the daemon's own shipper runs, and the test gives nothing back.
    """
    settings = Settings(
        id="here",
        data_dir=folder / "data",
        wal=WalSettings(segment_bytes=1 << 20),
        persist=PersistSettings(max_age=3600.0),
        manifest=ManifestSettings(refresh=3600.0),
    )
    store = open_store(f"file://{folder / 'store'}")
    carried: list[Runtime] = []
    log = Log(
        folder / "data" / "wal",
        log_settings(settings),
        carry=lambda: carried[0].carry() if carried else [],
    )
    recovered = await log.recover()
    epoch = await trio.to_thread.run_sync(claim_epoch, store, "here", 1, {"incarnation": "run"})
    identity = Identified(store, "", WriterIdentity("here", "run", epoch))
    found = Found(identity, log, recovered, [], 0)
    runtime = Runtime(settings, found, Metrics(CollectorRegistry()))
    carried.append(runtime)
    write, shipping = runtime.write, HeldShipping(names)
    async with trio.open_nursery() as workers:
        workers.start_soon(runtime.flush.flusher.run)
        await process.replay_log(runtime)
        taking: Shipping = shipping
        if really:
            taking = runtime.store_log.shipper
            await workers.start(runtime.store_log.shipper.run)
        await workers.start(log.run, write.operation_log.apply, write.coalescer().make, taking)
        yield ShippingDaemon(runtime, shipping)
        workers.cancel_scope.cancel()
