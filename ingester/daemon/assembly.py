"""The assembly of all parts of a running daemon, in one place.

Law of this file: who holds whom is visible here, and who is told of what by a hook; only version
followers put themselves on the list of those whom ``Commits`` tells. A part is made with those that
it needs; where one that comes later is told of something, a function looks it up. The file is long
because it names every part once. The write path, with tracing where somebody collects spans:

    AdmissionControl ┊ MetricsSink ─ (TracingSink) ─ DedupSink ─ WalSink ─ log ─▶ apply ─ BufferTree
    small batches    ┊ log ─ Coalescer ─ MetricsSink ─ (TracingSink) ─ EntryCollector ─▶ log
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import trio
from prometheus_client import CollectorRegistry

from ingester.buffer import (
    BufferHandle,
    BufferTree,
    FlushJob,
    FreezeLimits,
    TableBuffer,
    TreeHooks,
    Why,
)
from ingester.config.settings import ReplicationSettings, Settings
from ingester.copies.copies import Copies, CopyOptions
from ingester.copies.copy_files import Encoders
from ingester.copies.takeover import Takeover
from ingester.daemon.instrumentation import Instrumentation
from ingester.daemon.push_watch import PushWatch
from ingester.dml.control_records import encode_opened, encode_origins
from ingester.dml.operation import DmlSink
from ingester.dml.record import shrink
from ingester.errors import TooSlow
from ingester.flush.checkpoint_committer import CheckpointCommitter
from ingester.flush.file_writer import FileWriter
from ingester.flush.flusher import Flusher, FlushHooks
from ingester.flush.freeze_policy import FreezeAges, FreezePolicy
from ingester.flush.log_truncation import LogTruncation
from ingester.maintenance.garbage_collector import GarbageCollector
from ingester.maintenance.manifest_snapshots import SnapshotWriter
from ingester.maintenance.spark_metadata import SparkMetadata
from ingester.memory.heap_trim import HeapTrim
from ingester.memory.ledger import MemoryLedger, Watermarks
from ingester.observability.log_levels import LogLevels
from ingester.observability.metrics import Metrics
from ingester.observability.rates import RateCounter
from ingester.observability.status import DrainStatus, State, Status
from ingester.observability.status_lists import PageRequest, StatusPage
from ingester.observability.tracing.collector import open_traces
from ingester.origins.registry import Origins
from ingester.query.live_feed import LiveFeed
from ingester.query.live_groups import LogPast
from ingester.query.live_tail import LIVE_BYTES, LiveTails
from ingester.query.queries import Queries, QueryHooks, QueryLimits
from ingester.query.row_group_cache import CACHE_BYTES, RowGroupCache
from ingester.query.spill import ResultSpill, spill_handle
from ingester.query.ticket import FilterLimits
from ingester.quotas.namespaces import Namespaces
from ingester.recovery.left_logs import LeftLogs, adopt_into
from ingester.replication.commit import PointLookup, TransactionCommit, TransactionPath
from ingester.replication.dedup import TransactionDedup
from ingester.replication.open_transactions import OpenTransactions
from ingester.replication.reports import ReplicationReports
from ingester.replication.service import Replication
from ingester.server.auth.access import Access
from ingester.server.auth.views import Sees
from ingester.server.portal import Portal
from ingester.server.services import Services
from ingester.tables.catalog import Catalog
from ingester.tables.commits import CommitHooks, Commits
from ingester.tables.origin_lookup import KnownOrigins
from ingester.tables.origin_takeover import OriginTakeover
from ingester.tables.rules import TableRules
from ingester.write.admission import AdmissionControl, DiskRoom, QueueRoom
from ingester.write.checkpoints import CheckpointCalls
from ingester.write.coalescer import Coalescer
from ingester.write.dedup_sink import DedupSink
from ingester.write.metrics_sink import MetricsSink
from ingester.write.operation_maker import OperationMaker
from ingester.write.partition_room import PartitionRoom
from ingester.write.stream import WritePath
from ingester.write.streams import Writes
from ingester.write.tracing_sink import with_tracing
from ingester.write.transform.transforms import Transforms
from ingester.write.wal_sink import EntryCollector, WalSink, log_refusal
from persist.manifest import Fenced, WriterIdentity
from persist.parquet.copy_on_write import RewriteLimits
from persist.store import ObjectStore, WatchedStore
from persist.table import TableKey
from wal import Log, LogError, LogSettings, RecordKind, Recovered

if TYPE_CHECKING:
    from ingester.observability.tracing.writes import WriteTrace

Carried = Sequence[tuple[int, tuple[bytes, ...]]]
"""Records that a new segment of the log begins with: the kind and the parts of each."""

SETTLE_S = 0.01
"""The time that a query waits for fresh acknowledged rows to be applied, before it goes by way of
the loop: the loop is on its way, and back from there is farther."""


class Runtime:
    """The parts of one incarnation. Made on the loop, after its epoch is claimed.

    A step makes the parts of one room; the steps are in the order in which rooms need each other.
    """

    def __init__(
        self,
        settings: Settings,
        store: ObjectStore,
        writer: WriterIdentity,
        wal: Log,
        recovered: Recovered,
    ) -> None:
        self.settings = settings
        self.store = store
        self.writer = writer
        self.store_id = ""
        """By which clients of several daemons tell that all are of one store."""
        self.wal = wal
        self.recovered = recovered
        self.started_at = time.time()
        self.started_monotonic = time.monotonic()
        self.state: State = "starting"
        self.flight_url = ""
        self.access = Access()
        """Who may do what; before anybody is listened to, everybody everything."""
        self.http_url = ""
        self.log_levels = LogLevels(settings.log.level)
        self.fence: Fenced | None = None
        self.fenced = trio.Event()
        self._spill_folder = settings.data_dir / "spill"

        self._make_counters(settings)
        self._make_tables(settings)
        self._make_maintenance(settings)
        self._make_queries(settings)
        self._make_flush(settings)
        self._make_writes(settings)
        self._make_replication(settings.replication, settings.limits.transactions)
        self._make_copies(settings)

    def _make_counters(self, settings: Settings) -> None:
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry)
        self.rates = RateCounter(time.monotonic)
        self.instrumentation = Instrumentation(self.metrics, self.rates)
        memory = settings.memory
        self.ledger = MemoryLedger(Watermarks(memory.limit, memory.low, memory.high))
        self.heap_trim = HeapTrim()
        self.namespaces = Namespaces(settings.quotas, self.metrics.quota_refused)
        self.traces = open_traces(settings.tracing, self.writer)

    def _make_tables(self, settings: Settings) -> None:
        self.origins = Origins(time.monotonic, settings.limits.origins)
        self.tree = BufferTree(
            self.ledger,
            self.origins,
            FreezeLimits(
                settings.persist.max_partition_bytes,
                settings.replication.max_messages,
                settings.limits.checkpoints,
            ),
            TreeHooks(
                self._frozen,
                on_first_row=lambda: self.freeze_policy.wake(),
                on_release=lambda table, handle: self.live_tails.released(table, handle),
                on_checkpoint=lambda: self.checkpoint_committer.wake(),
                on_released=self.heap_trim.freed,
            ),
            ingester_id=self.writer.ingester_id,
            namespaces=self.namespaces,
        )
        commits = Commits(
            self.store,
            self.tree,
            self.writer,
            CommitHooks(self._spill, self._fenced, self._audit_change, self._reads),
            expire_after_s=settings.origins.expire_after,
        )
        self.catalog = Catalog(
            commits,
            self.tree,
            self.writer,
            TableRules(
                settings.auto_create,
                settings.limits,
                lambda: settings.flight.advertise or self.flight_url,
            ),
        )
        self.takeover = OriginTakeover(commits, self.origins, self.writer, self._begin_segment)
        self.known_origins = KnownOrigins(self.catalog, self.origins)

    def _make_maintenance(self, settings: Settings) -> None:
        manifest = settings.manifest
        self.snapshots = SnapshotWriter(self.catalog.commits)
        self.spark_metadata = (
            SparkMetadata(self.catalog, manifest.refresh) if manifest.spark_metadata else None
        )
        self.garbage_collector = GarbageCollector(
            self.catalog, self.tree, settings, on_run=self.metrics.clean_up_ended
        )
        self.push_watch = PushWatch(self.store)
        self.left_logs = LeftLogs(
            settings.recovery,
            settings.data_dir,
            adopt_into(self.store, settings.persist.target_file_bytes),
        )

    def _make_queries(self, settings: Settings) -> None:
        self.result_spill = ResultSpill(self._spill_folder, self.metrics.result_spilled)
        self.row_groups = RowGroupCache(
            self.store,
            cache_bytes=min(CACHE_BYTES, settings.memory.limit // 16),
            result_spill=self.result_spill,
        )
        self.queries = Queries(
            self.catalog,
            self.tree,
            QueryLimits(
                max_streams=settings.query.max_streams,
                client_timeout_s=settings.query.client_timeout,
                tail_retain_s=settings.query.tail_retain,
                refresh_s=settings.manifest.refresh,
                max_followers=settings.query.max_followers,
                filters=FilterLimits(
                    settings.query.max_filter_terms, settings.query.max_filter_bytes
                ),
                max_cpu_s=settings.query.max_cpu,
            ),
            self.row_groups,
            QueryHooks(
                settled=lambda: self.wal.wait_settled(SETTLE_S),
                on_opened=self.instrumentation.query_opened,
                on_expired=self.metrics.stream_timed_out,
            ),
        )
        self.live_tails = LiveTails(
            self.tree,
            LogPast(self.writer.ingester_id, self.writer.epoch, _ends(self.recovered)),
            retain_s=settings.query.tail_retain,
            retain_bytes=min(LIVE_BYTES, settings.memory.limit // 16),
        )
        self.live = LiveFeed(
            self.catalog,
            self.queries,
            self.live_tails,
            refresh_s=settings.manifest.refresh,
        )
        self.ledger.gauge("row_groups", lambda: self.row_groups.nbytes)
        self.ledger.gauge("answers", lambda: self.queries.answer_bytes() + self.live_tails.nbytes)

    def _make_flush(self, settings: Settings) -> None:
        self.flusher = Flusher(
            self.catalog,
            self.ledger,
            FileWriter(
                self.store,
                self.writer,
                RewriteLimits.within(settings.memory.limit, settings.persist.target_file_bytes),
            ),
            FlushHooks(self.instrumentation.persisted, self.instrumentation.persist_failed),
            workers=settings.persist.workers,
        )
        self.freeze_policy = FreezePolicy(
            self.tree,
            self.ledger,
            FreezeAges(max_age_s=settings.persist.max_age, max_lag_s=settings.replication.max_lag),
            shrink_caches=self._shrink_caches,
            make_room=self._make_room,
        )
        self.log_truncation = LogTruncation(
            self.wal, self.tree, self.flusher, self.metrics.segments_removed
        )
        self.checkpoint_committer = CheckpointCommitter(
            self.catalog.commits,
            self.tree,
            settings.persist.max_age,
            self.log_truncation.truncate,
        )
        self.ledger.gauge("checkpoints", lambda: self.tree.checkpoints.nbytes)

    def _make_writes(self, settings: Settings) -> None:
        self.wal_sink = WalSink(
            self.wal,
            self.tree,
            epoch=self.writer.epoch,
            relief=self.freeze_policy,
            on_group=self._group_applied,
        )
        self.admission = AdmissionControl(
            self.ledger,
            DiskRoom(settings.data_dir, settings.wal.segment_bytes, lambda: self.wal.certain_bytes),
            QueueRoom(lambda: self.flusher.queued_bytes, settings.persist.queue_bytes),
            self.namespaces,
        )
        post = Portal().post
        self.partition_room = PartitionRoom(
            self.tree,
            settings.limits,
            lambda table: post(self.freeze_policy.relieve_partitions, table),
        )
        # One number for each schema that rows come in, whoever writes them.
        self._schema_numbers = itertools.count(1)
        path = WritePath(
            admission=self.admission,
            sink=self._observed(
                DedupSink(self.origins, self.wal_sink, shrink, self.tree.definition_of)
            ),
            wal_sink=self.wal_sink,
            origins=self.origins,
            relief=self.freeze_policy,
            checkpoints=self.tree.checkpoints,
            partitions=self.partition_room,
            epoch=self.writer.epoch,
            newest_seq=lambda: self.tree.applied_seq,
        )
        self.transforms = Transforms(
            settings.transform,
            settings.tables,
            settings.flight.max_batch_bytes,
            self.metrics.transformed,
        )
        self.writes = Writes(
            self.catalog, self.takeover, path, self._schema_numbers, self.transforms
        )
        self.checkpoint_calls = CheckpointCalls(self.catalog, path, self._schema_numbers)

    def _make_replication(self, replication: ReplicationSettings, most_open: int) -> None:
        self.open_transactions = OpenTransactions(
            replication.max_transaction_bytes, trio.current_time, most_open
        )
        commit = TransactionCommit(
            TransactionDedup(self.catalog, self.takeover, self.transforms.names_of),
            PointLookup(self.row_groups, lambda: self.tree.applied_seq),
            TransactionPath(self.wal_sink, self.partition_room, self._schema_numbers),
            self.instrumentation.transaction_logged,
        )
        self.replication = Replication(
            self.catalog, self.known_origins, self.admission, commit, self.open_transactions
        )
        self.reports = ReplicationReports()
        self.ledger.gauge("transactions", lambda: self.open_transactions.nbytes)

    def _make_copies(self, settings: Settings) -> None:
        self.copies = Copies(
            self.catalog,
            self.writer,
            Encoders(self.ledger),
            Takeover(self.catalog, self.tree, self.persist),
            CopyOptions(
                names_of=self.transforms.names_of,
                is_stopping=lambda: self.admission.stopping,
                applied_seq=lambda: self.tree.applied_seq,
                target_bytes=settings.persist.target_file_bytes,
            ),
        )

    def _observed(self, inner: DmlSink) -> DmlSink:
        """Put counts and traces of operations in front of a sink."""
        return MetricsSink(self.metrics, self.rates, with_tracing(inner, bool(self.traces)))

    def coalescer(self) -> Coalescer:
        """Make the coalescer of small batches, for the thread that writes the log."""
        collector = EntryCollector(self.wal_sink)
        operations = OperationMaker(self.settings.flight.max_batch_bytes)
        return Coalescer(self._observed(collector), collector, operations, Portal().post)

    # What clients ask for

    def services(
        self,
        status: Callable[[Sees | None], Status],
        status_page: Callable[[PageRequest, Sees | None], StatusPage],
        access: Access,
        drain: Callable[[bool, float], Awaitable[DrainStatus]],
    ) -> Services:
        """Name the parts that protocols need; ``status`` gives what ``/api/status`` shows."""
        self.access = access
        return Services(
            writer=self.writer,
            store_id=self.store_id,
            catalog=self.catalog,
            writes=self.writes,
            replication=self.replication,
            reports=self.reports,
            queries=self.queries,
            live=self.live,
            known_origins=self.known_origins,
            checkpoints=self.checkpoint_calls,
            copies=self.copies,
            metrics=self.metrics,
            log_levels=self.log_levels,
            access=access,
            drain=drain,
            traces=self.traces,
            persist=self.persist,
            status=status,
            status_page=status_page,
            answered=self.instrumentation.answered,
            freed=self.heap_trim.freed,
        )

    async def persist(
        self, namespace: str | None, table: str | None, timeout_s: float
    ) -> list[TableBuffer]:
        """Commit everything acknowledged before the call, and return the tables in question.

        Raises:
            UnknownTable: it does not exist.
            TooSlow: it is not done within the time; the work goes on.
        """
        tables = await self.catalog.chosen(namespace, table)
        waiting: set[BufferHandle] = set()
        for chosen in tables:
            for partition in list(chosen.partitions.values()):
                self.tree.freeze(partition)
                waiting.update(partition.frozen)
        with trio.move_on_after(timeout_s):
            for handle in waiting:
                await self.flusher.until_released(handle)
            await self.checkpoint_committer.until_committed(tables)
            return tables
        left = len([handle for handle in waiting if not handle.released])
        raise TooSlow(
            f"persist: {left} of {len(waiting)} buffers are not in files after {timeout_s:g} s;"
            " the work goes on"
        )

    # What the parts tell each other

    def _fenced(self, fence: Fenced) -> None:
        self.admission.fence()
        self.state = "fenced"
        self.fence = fence
        self.fenced.set()

    def _audit_change(self, what: str, table: TableKey) -> None:
        self.access.audit.noted(what, "done", namespace=table[0], table=table[1])

    def _reads(self) -> bool:
        return self.store.reads if isinstance(self.store, WatchedStore) else True

    def _shrink_caches(self) -> None:
        self.row_groups.shrink()
        self.live_tails.shrink()

    def _make_room(self) -> None:
        """Let go of caches, which can be had again: a batch has found no room."""
        self._shrink_caches()
        self.replication.drop_idle()

    def _frozen(self, job: FlushJob, why: Why) -> None:
        self.metrics.frozen(why)
        if self.traces is not None:
            handle = job.handle
            said = {"ingester.partition": job.partition_name, "ingester.freeze_reason": why}
            handle.flush_trace = self.traces.flush(job.table.key, said, handle.traced)
        self.flusher.enqueue(job)

    def _group_applied(
        self, operations: int, nbytes: int, traced: Sequence[WriteTrace] = ()
    ) -> None:
        if traced and self.traces is not None:
            self.traces.group(traced, self.wal.applied_between_ns, operations, nbytes)
        self.metrics.group_synced(operations, nbytes, self.wal.last_sync_s)
        self.freeze_policy.after_group()

    def carried_records(self) -> Carried:
        """Return what a new log segment has to remember of the older ones: the origins."""
        carried = self.origins.carried()
        records: list[tuple[int, tuple[bytes, ...]]] = []
        if carried is not None:
            records.append((RecordKind.ORIGINS, (encode_origins(carried),)))
        if opened := self.replication.carried():
            records.append((RecordKind.OPENED, (encode_opened(opened),)))
        return records

    async def _begin_segment(self) -> None:
        """Have the log say anew what is applied of origins.

        Raises:
            DiskFull, Stopping, InternalFailure: the log cannot.
        """
        try:
            await self.wal.rotate(force=True)
        except LogError as exc:
            raise log_refusal(exc) from exc

    def _spill(self, handle: BufferHandle) -> None:
        """Spill a buffer that readers still need. Runs in a thread."""
        nbytes = spill_handle(self._spill_folder, handle)
        self.metrics.spilled(nbytes)


def _ends(recovered: Recovered) -> dict[int, int]:
    """The last sequence of each epoch that the log has."""
    ends: dict[int, int] = {}
    for segment in recovered.segments:
        ends[segment.epoch] = max(segment.last_seq, ends.get(segment.epoch, 0))
    return ends


def log_settings(settings: Settings) -> LogSettings:
    """Return the log's part of the settings."""
    wal = settings.wal
    return LogSettings(
        fsync=wal.fsync,
        fsync_interval_s=wal.fsync_interval,
        segment_bytes=wal.segment_bytes,
        segment_age_s=wal.segment_age,
    )
