"""One life of a daemon: its own parts on a disk and a store that may lose power, and its steps.

    write N      a batch over all partitions, acknowledged     query    all rows
    burst N      as many batches at once                       rotate   a new log segment, prune
    persist      everything buffered                           clean    versions, unlisted files

All batches are one origin's. A life first sends again what earlier ones left unanswered. The parts
are wired as in ``ingester.daemon.process``, without gRPC, HTTP and signals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import trio
from prometheus_client import CollectorRegistry

from ingester.config.settings import (
    ManifestSettings,
    MemorySettings,
    PersistSettings,
    Settings,
    WalSettings,
    WalStoreSettings,
)
from ingester.daemon import process as daemon
from ingester.daemon.assembly import Found, Identified, Runtime
from ingester.daemon.drain import Drain
from ingester.daemon.shutdown import drain_and_stop
from ingester.daemon.startup import log_settings
from ingester.errors import IngesterError
from ingester.observability.metrics import Metrics
from ingester.origins.checkpoint_state import SourceCheckpoint
from ingester.query.ticket import Ticket
from ingester.store_log.fencing import fence_epochs
from ingester.write.metadata import ReceivedMetadata
from ingester.write.operation_maker import OperationMaker
from ingester.write.sender import Awaits, Sender
from ingester.write.stream import Outcome, WriteStream
from ingester.write.streams import Target
from persist.manifest import (
    Manifest,
    Retention,
    TableNotFound,
    WriterIdentity,
    claim_epoch,
    clean_up,
)
from persist.partitioning import PartitionSpec
from persist.table import TableDefinition
from tests.lifetimes.model import Model
from tests.lifetimes.store import CrashStore
from tests.wal.disks import CrashDisk, PowerLost
from wal import Log, NoDisk
from wal.errors import LogError

TABLE = ("ns", "t")
ORIGIN = "source"
FOLDER = Path("/log")
DAY_US = 86_400_000_000
DAYS = 3
TIME = pa.timestamp("us", "UTC")
SCHEMA = pa.schema({"time": TIME, "k": pa.int64(), "i": pa.int64()})
KEYED = TableDefinition(SCHEMA, PartitionSpec.parse(["day(time)"]), primary_key=("time", "k"))
"""``k`` goes up and down, so that most flushes replace files of earlier ones."""
KEEP_TWO = Retention(retain_s=0, orphan_grace_s=0, keep_versions=2)

Step = tuple[str, int]


@dataclass
class Machine:
    """The parts that survive a life, and the model of the expected rows."""

    disk: CrashDisk = field(default_factory=CrashDisk)
    store: CrashStore = field(init=False)
    model: Model = field(default_factory=Model)
    seed: int = 0
    keyed: bool = False
    level: str = "disk"
    """Where batches are acknowledged. At ``store`` the store is elsewhere, and every second loss of
    power is the loss of the machine with its disk. ``off`` is a machine without a disk."""

    def __post_init__(self) -> None:
        self.store = CrashStore(self.disk)

    def power_cycle(self) -> None:
        """Lose everything that is not durable, and start again."""
        self.seed += 1
        keeps_disk = self.level == "disk" or (self.level == "store" and self.seed % 2 == 0)
        disk = self.disk.after_crash(self.seed) if keeps_disk else type(self.disk)()
        if self.level == "disk":
            self.store = self.store.after_crash(disk, self.seed)
        else:
            self.store = self.store.used_by(disk)
        self.disk = disk

    def live(self, scratch: Path, script: Sequence[Step], calls: int | None, end: str) -> bool:
        """Run one life with the script's steps; return whether it completed.

        Args:
            calls: The number of the changing call at which power is lost; None for never.
            end: ``stop`` as by SIGTERM, or ``kill``.
        """
        self.disk.calls_left = calls
        try:
            trio.run(partial(_Life(self, scratch).live, script, end), strict_exception_groups=True)
        except PowerLost:
            pass
        except BaseExceptionGroup as group:
            broken = group.split(PowerLost)[1]
            if broken is not None:
                raise _first(broken) from group
        lost = self.disk.lost
        self.power_cycle()
        return not lost

    def rows_in_files(self) -> list[int]:
        """The rows of the newest manifest version, read with pyarrow alone."""
        manifest = Manifest(self.store, *TABLE)
        try:
            files = manifest.load().files
        except TableNotFound:
            return []
        found = (pa.BufferReader(self.store.get(manifest.object_path(path))) for path in files)
        return [i for file in found for i in pq.read_table(file, columns=["i"])["i"].to_pylist()]


class _Life:
    def __init__(self, machine: Machine, scratch: Path) -> None:
        self.machine = machine
        self.settings = Settings(
            id="machine",
            data_dir=scratch,
            ack="disk" if machine.level == "disk" else "store",
            wal=WalSettings(
                segment_bytes=4096,
                disk="off" if machine.level == "off" else "on",
                store=WalStoreSettings(interval=0.01),
            ),
            persist=PersistSettings(max_age=3600.0),
            memory=MemorySettings(limit=1 << 30),
            manifest=ManifestSettings(refresh=0.01),
        )
        self.runtime: Runtime
        self.drain: Drain
        self.sender: Sender | None = None
        self._deliver: Callable[[list[Outcome]], None]

    async def live(self, script: Sequence[Step], end: str) -> None:
        self.runtime = runtime = await self._assembled()
        async with trio.open_nursery() as workers:
            flush, write = runtime.flush, runtime.write
            for work in (flush.flusher.run, flush.freeze_policy.run, flush.log_truncation.run):
                workers.start_soon(work)
            workers.start_soon(runtime.maintenance.snapshots.run)
            workers.start_soon(runtime.store_log.cleaner.run)
            self.drain = Drain(runtime)
            workers.start_soon(self.drain.run)
            await daemon.replay_log(runtime)
            shipper, make = runtime.store_log.shipper, write.coalescer().make
            await workers.start(shipper.run)
            await workers.start(runtime.wal.run, write.operation_log.apply, make, shipper)
            await self._query()
            for name, amount in script:
                await self._do(name, amount)
            await self._query()
            if end == "stop":
                await drain_and_stop(runtime)
            workers.cancel_scope.cancel()

    async def _assembled(self) -> Runtime:
        machine, settings = self.machine, self.settings
        carried: list[Runtime] = []
        wal = Log(
            FOLDER,
            log_settings(settings),
            disk=NoDisk() if machine.level == "off" else machine.disk,
            carry=lambda: carried[0].carry() if carried else [],
        )
        recovered = await wal.recover()
        body = {"incarnation": "run"}
        claim = partial(claim_epoch, machine.store, settings.id, recovered.highest_epoch + 1, body)
        epoch = await trio.to_thread.run_sync(claim)
        writer = WriterIdentity(settings.id, "run", epoch)
        ended = await trio.to_thread.run_sync(fence_epochs, machine.store, writer)
        found = Found(Identified(machine.store, "", writer), wal, recovered, ended, 0)
        runtime = Runtime(settings, found, Metrics(CollectorRegistry()))
        carried.append(runtime)
        return runtime

    async def _do(self, name: str, amount: int) -> None:
        try:
            await self._step(name, amount)
        except (IngesterError, LogError) as exc:
            if self.machine.disk.lost:  # the daemon has noticed first, and refuses or ends
                raise PowerLost from exc
            raise

    async def _step(self, name: str, amount: int) -> None:
        if name == "write":
            await self._write([amount])
        elif name == "burst":
            await self._write([1] * amount)
        elif name == "query":
            await self._query()
        elif name == "persist":
            await self.runtime.flush.persist(*TABLE, timeout_s=30.0)
        elif name == "rotate":
            await self.runtime.wal.rotate()
            await self.runtime.flush.log_truncation.truncate()
        elif name == "drain":
            await self._drain(to_its_end=amount % 2 == 1)
        else:
            assert name == "clean"
            manifest = Manifest(self.machine.store, *TABLE)
            await trio.to_thread.run_sync(partial(clean_up, manifest, KEEP_TWO))

    async def _drain(self, *, to_its_end: bool) -> None:
        """Drain, check the state, and undrain, whether or not the drain is done."""
        told = await self.drain.asked(undo=False, wait_s=0.0)
        with trio.fail_after(30):
            while to_its_end and told.state == "draining":
                # Without power it retries forever, as with an unreachable store.
                if self.machine.disk.lost:
                    raise PowerLost
                told = await self.drain.asked(undo=False, wait_s=0.05)
        if told.state == "drained":
            assert (told.buffers, told.bytes, told.tables) == (0, 0, 0)
        await self._query()
        await self.drain.asked(undo=True, wait_s=0.0)
        self.sender = None

    async def _opened(self) -> Sender:
        if self.machine.keyed:
            await self.runtime.tables.catalog.create(*TABLE, KEYED)
        # The log's thread answers before the event loop has applied the logged operation.
        token, writes = trio.lowlevel.current_trio_token(), self.runtime.write.writes
        stream = await writes.open(
            Target(*TABLE, ORIGIN),
            SCHEMA,
            lambda some: token.run_sync_soon(lambda: self._deliver(some)),
            checked=0,
        )
        assert isinstance(stream, WriteStream)
        return Sender(
            stream,
            OperationMaker(1 << 20),
            lambda *begun: trio.from_thread.run(writes.begin, *begun),
            lambda *asked: trio.from_thread.run(writes.decide, *asked),
            lambda nbytes: None,
        )

    async def _write(self, sizes: list[int]) -> None:
        """Send what is unanswered and batches of these sizes, all before the first answer."""
        if self.sender is None:
            self.sender = await self._opened()
        sender, model = self.sender, self.machine.model
        sent = [*model.unanswered(), *(model.send(rows) for rows in sizes)]
        answered = trio.Event()
        outcomes: list[Outcome] = []

        def deliver(some: list[Outcome]) -> None:
            for outcome in some:
                outcomes.append(outcome)
                if not isinstance(outcome, BaseException):
                    model.acknowledged(sent[len(outcomes) - 1])
            if len(outcomes) == len(sent):
                answered.set()

        def send() -> None:
            for numbers in sent:
                sender.send(_batch(numbers), _metadata(numbers), Awaits.NOTHING)

        self._deliver = deliver
        await trio.to_thread.run_sync(send)
        with trio.fail_after(30):
            await answered.wait()
        # As every caller from another thread does first.
        self.runtime.wal.catch_up()
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _query(self) -> None:
        """Query all rows with the daemon's own readers."""
        if not await trio.to_thread.run_sync(_exists, self.machine.store):
            self.machine.model.seen([])
            return
        answer = await self.runtime.query.queries.open(Ticket(*TABLE))

        def read() -> list[int]:
            return [i for part in answer for i in part.batch["i"].to_pylist()]

        self.machine.model.seen(await trio.to_thread.run_sync(read))


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _exists(store: CrashStore) -> bool:
    try:
        return Manifest(store, *TABLE).head() > 0
    except TableNotFound:
        return False


def _metadata(numbers: range) -> ReceivedMetadata:
    """The sequence of a batch, and often a state, with which it is not coalesced with others."""
    state = SourceCheckpoint("all", b"%d" % numbers.stop) if len(numbers) % 3 == 0 else None
    return ReceivedMetadata(numbers.start, state)


def _batch(numbers: range) -> pa.RecordBatch:
    times = [number % DAYS * DAY_US for number in numbers]
    keys = [number * 7919 % 10007 for number in numbers]
    columns = [pa.array(times, TIME), pa.array(keys, pa.int64()), pa.array(numbers, pa.int64())]
    return pa.record_batch(columns, schema=SCHEMA)
