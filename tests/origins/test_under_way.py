"""What is on its way to the log when an origin leaves a daemon and comes back to it."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import trio
from prometheus_client import CollectorRegistry

from ingester.config.settings import ManifestSettings, PersistSettings, Settings, WalSettings
from ingester.daemon import process
from ingester.daemon.assembly import Found, Identified, Runtime
from ingester.daemon.startup import log_settings
from ingester.errors import StoreUnreachable
from ingester.observability.metrics import Metrics
from ingester.write.acknowledgement import PutAnswer
from ingester.write.operation_maker import OperationMaker
from ingester.write.stream import Outcome, Write, WriteStream
from ingester.write.streams import Target
from persist.manifest import WriterIdentity, claim_epoch
from persist.store import ObjectStore, open_store
from tests.drivers.waiting import PATIENCE_S
from tests.fencing.pairs import rows_in_files, store_url
from tests.wal.disks import FaultyDisk
from wal import Log

TABLE = ("ns", "t")
ORIGIN = "station-7"
SCHEMA = pa.schema({"i": pa.int64()})


class Member(NamedTuple):
    """A daemon in this process: its own parts, without servers and signals."""

    runtime: Runtime
    disk: FaultyDisk

    async def stream(self, first: int) -> Stream:
        """Open a stream and take the origin over from ``first`` on."""
        send, heard = trio.open_memory_channel[Outcome](100)
        token, writes = trio.lowlevel.current_trio_token(), self.runtime.write.writes

        def deliver(outcomes: list[Outcome]) -> None:
            for outcome in outcomes:
                token.run_sync_soon(send.send_nowait, outcome)

        opened = await writes.open(Target(*TABLE, ORIGIN), SCHEMA, deliver, checked=0)
        assert isinstance(opened, WriteStream)
        await writes.begin(opened, first)
        return Stream(opened, heard)

    async def persist(self) -> None:
        self.runtime.wal.catch_up()  # as every caller from another thread does first
        await self.runtime.flush.persist(*TABLE, timeout_s=PATIENCE_S)


class Stream(NamedTuple):
    """A stream of batches with one row each, whose number is its sequence."""

    stream: WriteStream
    heard: trio.MemoryReceiveChannel[Outcome]

    def send(self, number: int) -> None:
        stream = self.stream
        batch = pa.record_batch({"i": pa.array([number], pa.int64())})
        write = Write(stream, number)
        operation = OperationMaker(1 << 20).make(stream.plan, batch, stream.numbered(number))
        stream.admit_operation(operation)
        if not (operation.admitted_bytes and stream.append(write, operation, here=False)):
            stream.decide(write, operation)

    async def answer(self) -> PutAnswer:
        outcome = await self.heard.receive()
        assert isinstance(outcome, PutAnswer), outcome
        return outcome


@asynccontextmanager
async def running(folder: Path, store: ObjectStore, name: str) -> AsyncIterator[Member]:
    settings = Settings(
        id=name,
        data_dir=folder / name,
        wal=WalSettings(segment_bytes=1 << 20),
        persist=PersistSettings(max_age=3600.0),
        manifest=ManifestSettings(refresh=3600.0),
    )
    disk = FaultyDisk()
    log = Log(folder / name / "wal", log_settings(settings), disk=disk)
    recovered = await log.recover()
    epoch = await trio.to_thread.run_sync(claim_epoch, store, name, 1, {"incarnation": "run"})
    identity = Identified(store, "", WriterIdentity(name, "run", epoch))
    found = Found(identity, log, recovered, [], 0)
    runtime = Runtime(settings, found, Metrics(CollectorRegistry()))
    write = runtime.write
    async with trio.open_nursery() as workers:
        workers.start_soon(runtime.flush.flusher.run)
        await process.replay_log(runtime)
        await workers.start(log.run, write.operation_log.apply, write.coalescer().make)
        yield Member(runtime, disk)
        workers.cancel_scope.cancel()


def test_what_was_on_its_way_when_an_origin_left_makes_no_duplicate_when_it_is_back(
    tmp_path: Path,
) -> None:
    store, held = open_store(store_url(tmp_path)), threading.Event()

    def wait_until_let_go(_: object) -> None:
        held.wait()

    async def moves(a: Member, b: Member) -> None:
        first = await a.stream(0)
        first.send(0)
        await first.answer()
        a.disk.before("fdatasync", wait_until_let_go)
        first.send(1)
        other = await b.stream(0)
        other.send(0)
        assert not (await other.answer()).duplicate
        streams: list[Stream] = []

        async def come_back() -> None:
            while not streams:
                # Retried as clients do while the daemon flushes what it had before.
                with suppress(StoreUnreachable):
                    streams.append(await a.stream(0))

        fates = a.runtime.tables.origins.table(ORIGIN, TABLE).fates
        async with trio.open_nursery() as clients:
            clients.start_soon(come_back)
            # Private, as nobody else is told that something waits for the log.
            while not (streams or any(fates._waiting.values())):
                await trio.sleep(0)
            if streams:
                streams[0].send(0)
            held.set()
        (back,) = streams
        for number in (0, 1):
            back.send(number)
            await back.answer()
        for member in (a, b, a):
            await member.persist()

    async def run() -> None:
        async with running(tmp_path, store, "a") as a, running(tmp_path, store, "b") as b:
            try:
                await moves(a, b)
            finally:
                held.set()

    trio.run(run)
    assert rows_in_files(tmp_path, TABLE) == [0, 1]
