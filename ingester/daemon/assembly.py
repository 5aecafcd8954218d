"""The assembly of a running daemon: opens each room, and connects what they tell each other.

    Found (`startup`) ─▶ tables ─▶ query ─▶ flush ─▶ write ─▶ replication, copies ─▶ background work

Each room's ``opening`` makes its parts. A room gets the rooms below it as arguments; functions of a
room that is opened later are looked up when they are called.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import structlog
import trio

from ingester.buffer import FlushJob, TreeHooks, Why
from ingester.compaction import CompactionHooks, Compactor
from ingester.config.settings import Settings
from ingester.copies.copies import CopyOptions, open_copies
from ingester.daemon.push_watch import PushWatch
from ingester.dml.control_records import encode_opened, encode_origins
from ingester.errors import IngesterError, Stopping
from ingester.flush.opening import open_flush
from ingester.maintenance import open_maintenance
from ingester.memory.heap_trim import HeapTrim
from ingester.memory.ledger import MemoryLedger, Watermarks
from ingester.observability.metrics import Metrics
from ingester.observability.status import LostOperations, State
from ingester.observability.tracing.collector import open_traces
from ingester.publishing import open_publishing
from ingester.query.live_groups import LogPast
from ingester.query.opening import open_query
from ingester.quotas.namespaces import Namespaces
from ingester.recovery.left_logs import LeftLogs
from ingester.recovery.left_sources import LeftSources
from ingester.replication.opening import open_replication
from ingester.server.portal import Portal
from ingester.sql.opening import open_sql
from ingester.store_log.fencing import FencedEpoch
from ingester.store_log.heartbeat import Heart
from ingester.store_log.opening import Left, open_store_log
from ingester.store_log.shipper import ShipHooks
from ingester.tables.commits import CommitHooks
from ingester.tables.opening import Shared, TableHooks, open_tables
from ingester.write.opening import WriteHooks, open_write
from persist.manifest import Fenced, WriterIdentity
from persist.store import ObjectStore, WatchedStore
from persist.table import TableKey
from wal import Entry, Log, RecordKind, Recovered, RouteState
from wal.objects import DiskOnly

if TYPE_CHECKING:
    from ingester.observability.tracing.writes import WriteTrace

log = structlog.get_logger(__name__)

BUSY_QUEUE = 4
"""The daemon counts as busy while more than a quarter of ``persist.queue_bytes`` is queued."""

FLUSH_S, FLUSH_RETRY_S = 60.0, 1.0
"""The time for a table's flush before its first operation is shipped, and between two attempts."""

NEVER_IN_FILES = 1 << 62
"""Above all sequences."""

Carried = Sequence[tuple[int, tuple[bytes, ...]]]
"""The records at the start of a new log segment: the kind and the parts of each."""
Audit = Callable[[str, TableKey], None]


@dataclass(frozen=True, slots=True)
class Identified:
    """The store, and this process's identity in it."""

    store: ObjectStore
    store_id: str
    """Identifies the store to clients of several daemons."""
    writer: WriterIdentity
    has_objects: bool = False
    """Whether earlier epochs of this id had log objects."""


@dataclass(frozen=True, slots=True)
class Found:
    """The findings of the start: its identity, the log, and the logs of earlier epochs in the
    store.
    """

    identity: Identified
    wal: Log
    recovered: Recovered
    ended: list[FencedEpoch]
    log_since: int
    """The first epoch whose log was in this data directory."""

    def log_ends(self) -> dict[int, int]:
        """Return the last sequence of each epoch in the log."""
        ends: dict[int, int] = {}
        for segment in self.recovered.segments:
            ends[segment.epoch] = max(segment.last_seq, ends.get(segment.epoch, 0))
        return ends

    def lost(self) -> list[LostOperations]:
        """Return what was acknowledged on disks that are not here, as far as the store knows."""
        here = {segment.epoch for segment in self.recovered.segments}
        return [
            ended.lost(one)
            for ended in self.ended
            # The disk of an epoch from then on is here, and its rows are in files.
            if ended.epoch not in here and ended.epoch < self.log_since
            for one in ended.disk_only
        ]


def catch_up(wal: Log) -> None:
    """Apply everything acknowledged, so that a call sees it or learns that it cannot."""
    wal.catch_up()
    if wal.diverged:
        raise Stopping("the daemon stops: it could not apply what is in its log")


class Runtime:
    """All parts of one start of the daemon. Made on the loop, after its epoch is claimed."""

    def __init__(
        self,
        settings: Settings,
        found: Found,
        metrics: Metrics,
        audit: Audit = lambda what, table: None,
    ) -> None:
        """``audit`` receives each creation and switch of a table."""
        self.settings, self.metrics = settings, metrics
        identity = found.identity
        self.store, self.store_id, self.writer = identity.store, identity.store_id, identity.writer
        self.wal, self.recovered = found.wal, found.recovered
        self.state: State = "starting"
        self.flight_url = self.http_url = ""
        self.fence: Fenced | None = None
        self.fenced = trio.Event()
        self._told_store = trio.Event()
        """Set when the store has the newest record of origins that it was given."""
        self._told_store.set()

        marks = Watermarks(settings.memory.limit, settings.memory.low, settings.memory.high)
        self.ledger, self.heap_trim = MemoryLedger(marks), HeapTrim()
        self.namespaces = Namespaces(settings.quotas, metrics.quota_refused)
        self.traces = open_traces(settings.tracing, self.writer)
        self.store_log = open_store_log(
            self.store,
            self.writer,
            settings,
            Left(found.ended, found.recovered.segments, identity.has_objects),
            self._ship_hooks(),
        )
        self.ledger.gauge("log objects", lambda: self.store_log.shipper.encoded_bytes)
        self.store_log.lost.extend(found.lost())
        shared = Shared(
            settings,
            self.store,
            self.writer,
            self.wal,
            self.ledger,
            self.namespaces,
            metrics,
            self.store_log,
        )

        tree_hooks = TreeHooks(
            self._frozen,
            on_first_row=lambda: self.flush.freeze_policy.wake(),
            on_release=lambda table, handle: self.query.live_tails.released(table, handle),
            on_checkpoint=lambda: self.flush.checkpoint_committer.wake(),
            on_released=self.heap_trim.freed,
        )
        table_hooks = TableHooks(
            tree_hooks,
            CommitHooks(lambda handle: self.query.spill(handle), self._fenced, audit, self._reads),
            begin_segment=self._begin_segment,
            flight_url=lambda: settings.flight.advertise or self.flight_url,
        )
        self.tables = tables = open_tables(shared, table_hooks)
        past = LogPast(self.writer.ingester_id, self.writer.epoch, found.log_ends())
        self.query = open_query(shared, tables, past)
        self.flush = open_flush(
            shared,
            tables,
            shrink_caches=self.query.shrink_caches,
            make_room=self._make_room,
        )
        write_hooks = WriteHooks(
            self.flush.freeze_policy,
            self.flush.freeze_policy.relieve_partitions,
            queued_bytes=lambda: self.flush.flusher.queued_bytes,
            on_group=self._group_applied,
            make_post=lambda: Portal().post,
        )
        self.write = open_write(shared, tables, write_hooks)
        self.replication = open_replication(shared, tables, self.write, self.query.row_groups)
        copy_options = CopyOptions(
            names_of=self.write.transforms.names_of,
            is_stopping=lambda: self.write.admission.stopping,
            upto_in=tables.tree.upto_in,
            target_bytes=settings.persist.target_file_bytes,
        )
        portal = Portal(before=partial(catch_up, self.wal))
        self.sql = open_sql(shared, tables, self.query.queries, portal.call, self.store_id)
        self.copies = open_copies(shared, tables, self.flush.persist, copy_options)
        self.publishing = open_publishing(shared, tables)
        self.maintenance = open_maintenance(shared, tables, self.publishing.clean_up)
        self.compactor = Compactor(
            tables.catalog,
            tables.tree,
            self.ledger,
            settings,
            CompactionHooks(
                self._busy, lambda: self.write.admission.stopping, metrics.compaction_ended
            ),
        )
        target_bytes = settings.persist.target_file_bytes
        left = LeftSources(self.store, target_bytes, settings.data_dir, settings.id)
        self.left_logs = LeftLogs(settings.recovery, left)
        first_needed = self.flush.log_truncation.first_needed
        self.heart = Heart(self.store, self.writer, self.store_log.cleaner, first_needed)
        self.push_watch = PushWatch(self.store)

    @property
    def tasks(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """The functions that run from before the replay until the end of the daemon."""
        return (
            self.store_log.cleaner.run,
            self.heart.run,
            *self.flush.tasks,
            *self.maintenance.tasks,
            self.compactor.run,
            self.publishing.run,
            *self.query.tasks,
            self.heap_trim.run,
            self.sql.run_forever,
            self.write.transforms.load_early,
            self.copies.run,
            self.push_watch.run,
        )

    def _ship_hooks(self) -> ShipHooks:
        return ShipHooks(
            self.wal.shipped,
            flush=self._flush_table,
            catch_up=self.wal.catch_up,
            open_segment=lambda: self.wal.open_segment,
            acknowledged=lambda made: self.store_log.cleaner.note_acknowledged(made),
            kept_from=lambda: self.store_log.cleaner.kept_from,
            controls=self.carried_in_store,
            disk_only=self._disk_only,
            fenced=self._fenced,
        )

    def hold_replayed(self) -> None:
        """Have tables at level ``store`` flushed whose replayed operations the store may lack.

        Some were never acknowledged, and all are readable now.
        """
        levels = self.write.writes.levels
        for table in self.tables.tree.tables.values():
            level = levels.level(table.key, table.definition.ack)
            if table.on_disk_only and level == "store" and not table.route.ships:
                self.store_log.shipper.hold(table.route)

    async def _flush_table(self, name: str) -> None:
        """Return when everything that the log has applied to a table is in files."""
        namespace, _, table = name.partition("/")
        while True:
            self.wal.catch_up()
            try:
                await self.flush.persist(namespace, table, FLUSH_S)
                return
            except IngesterError as exc:
                # What waits for it is kept, and others are refused.
                log.warning(
                    "table not flushed yet", table=name, error=str(exc), runbook="store-away"
                )
                await trio.sleep(FLUSH_RETRY_S)

    def _disk_only(self) -> tuple[DiskOnly, ...]:
        """Return what was acknowledged and is neither shipped nor in files: an upper bound."""
        found = []
        for table in self.tables.tree.tables.values():
            # A HELD table's rows are being flushed, and are lost with the disk until then.
            if table.on_disk_only and table.route.state is not RouteState.SHIPPED:
                epoch, seq = table.newest
                # Nobody can tell from sequences of this epoch whether earlier ones' are in files.
                last_seq = seq if epoch == self.writer.epoch else NEVER_IN_FILES
                found.append(DiskOnly(*table.key, table.on_disk_only, last_seq))
        return tuple(found)

    def carry(self) -> Carried:
        """Return the records of a new log segment; the store log gets its own."""
        shipper = self.store_log.shipper
        if shipper.in_use or (shipper.runs and self.store_log.cleaner.objects):
            entries = [Entry(kind, parts) for kind, parts in self.carried_in_store()]
            for entry in entries:
                entry.seq, entry.segment = self.wal.next_seq, self.wal.open_segment
                told = self._told_store = trio.Event()
                entry.on_done = lambda entry, error, told=told: told.set()
            if entries:
                shipper.submit(entries)
        return self.carried_records()

    async def _begin_segment(self) -> None:
        """Begin a log segment; on return the store log, too, has the newest record of origins."""
        await self.write.begin_segment()
        await self._told_store.wait()

    def carried_in_store(self) -> Carried:
        """Return what a log object repeats of older ones: the origins, as far as the store goes."""
        return self._control_records(self.tables.origins.carried_in_store())

    def carried_records(self) -> Carried:
        """Return what a new log segment repeats of the older ones: the origins."""
        return self._control_records(self.tables.origins.carried())

    def _control_records(self, carried: list[tuple[str, str, str, int]] | None) -> Carried:
        records: list[tuple[int, tuple[bytes, ...]]] = []
        if carried is not None:
            records.append((RecordKind.ORIGINS, (encode_origins(carried),)))
        if opened := self.replication.service.carried():
            records.append((RecordKind.OPENED, (encode_opened(opened),)))
        return records

    # What the rooms tell each other

    def _fenced(self, fence: Fenced) -> None:
        self.write.admission.fence()
        self.state = "fenced"
        self.fence = fence
        self.fenced.set()

    def _reads(self) -> bool:
        return self.store.reads if isinstance(self.store, WatchedStore) else True

    def _busy(self) -> bool:
        """Return whether work that can wait should wait."""
        queued, most = self.flush.flusher.queued_bytes, self.settings.persist.queue_bytes
        return queued > most // BUSY_QUEUE or bool(self.write.admission.refusals())

    def _make_room(self) -> None:
        self.query.shrink_caches()
        self.replication.service.drop_idle()

    def _frozen(self, job: FlushJob, why: Why) -> None:
        self.metrics.frozen(why)
        if self.traces is not None:
            handle = job.handle
            said = {"ingester.partition": job.partition_name, "ingester.freeze_reason": why}
            handle.flush_trace = self.traces.flush(job.table.key, said, handle.traced)
        self.flush.flusher.enqueue(job)

    def _group_applied(
        self, operations: int, nbytes: int, traced: Sequence[WriteTrace] = ()
    ) -> None:
        if traced and self.traces is not None:
            self.traces.group(traced, self.wal.applied_between_ns, operations, nbytes)
        self.metrics.group_synced(operations, nbytes, self.wal.last_sync_s)
        self.tables.origins.settle()
        self.flush.freeze_policy.after_group()
