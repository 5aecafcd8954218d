"""The status of a daemon as JSON: ``/api/status``, ``/api/history``, the Flight action ``status``.

One struct is one JSON object, with the same names. Units are in the names (``_bytes``, ``_s``)
except for ``rows``, ``bytes`` and ``files``. Sizes of buffers are bytes of memory, sizes of what is
persisted are bytes of files. Times are ISO 8601 in UTC, and unknown values are null. Readers ignore
unknown fields, so fields may be added.

The size is bounded: a list that grows with load has its first entries here, and ``counts`` has its
length. All entries are available in pages (:mod:`ingester.observability.status_lists`). Pure.
"""

from typing import Literal

import msgspec

from ingester.config.settings import Level
from ingester.observability.log_levels import LogLevelStatus
from ingester.observability.logs import Problem
from ingester.reports.pushes import (
    PushStatus,
)
from ingester.reports.replications import Phase, ReplicationReport

State = Literal["starting", "ready", "draining", "drained", "stopping", "fenced"]
AdoptionState = Literal["held", "absent", "waiting", "adopting", "adopted", "failed", "refused"]
DrainState = Literal["none", "draining", "drained"]
Severity = Literal["warning", "critical"]
Reached = Literal["ok", "away", "unknown"]
StoreLogState = Literal["unused", "ok", "failing", "fenced"]


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The identity and the addresses of the daemon."""

    ingester_id: str
    incarnation: str
    epoch: int
    version: str
    pid: int
    started_at: str
    uptime_s: float
    state: State
    flight: str
    """The address that clients connect to: ``grpc://127.0.0.1:8082``."""
    http: str
    store: str
    """URL of the object store, without credentials."""


class Alarm(msgspec.Struct, frozen=True, kw_only=True):
    """A condition that an operator has to act on, for as long as it lasts."""

    name: str
    """One of :data:`ingester.observability.alarms.ALARMS`; each name is raised once at a time."""
    severity: Severity
    """``critical``: something is refused or fails now. ``warning``: it will without action."""
    since: str
    """When it was raised."""
    message: str
    """A sentence with current values. It names no namespace and no table."""
    runbook: str
    """The entry of ``deploy/RUNBOOK.md`` that says what to do."""


class StoreState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the object store, by the daemon's last requests and a probe every ten
    seconds."""

    state: Reached = "unknown"
    """``away`` (unreachable) if reads or writes fail, or if it is not the store the daemon started
    with; ``unknown`` before the first answer."""
    since: str | None = None
    """When this state began."""
    last_ok_at: str | None = None
    """When the store last answered."""
    last_error: str | None = None
    """The last failure, even if it has passed. It may name an object."""
    reads: bool = True
    """False while read requests fail; queries of files fail too."""
    writes: bool = True
    """False while write requests fail; flushes fail too and are retried."""


class DiskStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The disks of the daemon; null before the first check, or where there is no such disk."""

    log_free_bytes: int | None = None
    log_total_bytes: int | None = None
    log_free_files: int | None = None
    """Free inodes; null if the file system has no limit."""
    log_problem: str | None = None
    """Why the log's file system accepts no writes, for example because it is read-only."""
    reserved_bytes: int = 0
    """Bytes the log can write without allocating disk space."""
    full: bool = False
    """Whether a batch of average size would be refused with ``disk_full`` now."""
    spill_free_bytes: int | None = None
    """Free space for rows that queries spill."""
    store_free_bytes: int | None = None
    """Free space of a store on local files."""
    store_total_bytes: int | None = None


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """Why writes are refused; ``code`` is one of the codes of Flight errors."""

    code: str
    message: str
    retry_after_s: float | None = None


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that count against ``memory.limit``, and the watermarks."""

    used_bytes: int
    limit_bytes: int
    low_bytes: int
    high_bytes: int
    by_kind: dict[str, int] = {}
    """Bytes by what uses them (``buffered``, ``frozen``, ``jobs``, ``answers``, …)."""


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a write would be accepted now; ``reasons`` is empty exactly then."""

    accepts_writes: bool
    reasons: list[Reason]
    memory: Memory


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Averages per second over one time span."""

    rows_per_s: float = 0.0
    bytes_per_s: float = 0.0
    operations_per_s: float = 0.0
    queries_per_s: float = 0.0


class RateSpans(msgspec.Struct, frozen=True, kw_only=True):
    """Rates over a short and a long time span."""

    last_10s: Rates = Rates()
    last_60s: Rates = Rates()


class Buffered(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that queries read from memory."""

    rows: int = 0
    bytes: int = 0
    partitions: int = 0


class PersistedRows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows in committed files."""

    rows: int = 0
    bytes: int = 0
    files: int = 0


class CheckpointStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Checkpoints of sources: of one table, or of all open tables."""

    count: int = 0
    bytes: int = 0
    """Bytes of states, shared ones included."""
    pending: int = 0
    """Source partitions whose newest state is only in the log."""


class TransformerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A transformer class of a table, and its version when it last took effect."""

    name: str = msgspec.field(name="class")
    version: str
    previous: str | None = None
    """The previous version; null if there was none."""


class TransformStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The threads that run transformers."""

    busy_threads: int = 0
    hung_calls: dict[str, int] = {}
    """Timed-out calls that still run, by class."""


class PublishedFormat(msgspec.Struct, frozen=True, kw_only=True):
    """A table in one of the open formats that this daemon publishes it in."""

    format: str
    number: int | None = None
    """The newest published version: Delta's version, Iceberg's snapshot id; null if unknown."""
    location: str | None = None
    """What an engine opens."""
    versions_behind: int | None = None
    """Manifest versions that are not published; null before the first attempt."""
    seconds_behind: float = 0.0
    """Age of the oldest version that waits to be published."""
    refused: str | None = None
    """Why it is not published until somebody changes something."""
    error: str | None = None
    """Why the last attempt failed; it is repeated."""


class PublishStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Publishing in open formats."""

    tables: int = 0
    """Tables that this daemon publishes."""
    behind: int = 0
    """Tables with a version that waits to be published."""
    seconds_behind: float = 0.0
    """Age of the oldest of these versions."""
    stopped: int = 0
    """Tables that are not published in one of their formats until somebody changes something."""


class TableStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One table: its newest manifest version and where its rows are."""

    namespace: str
    table: str
    manifest_version: int | None
    table_version: int = 1
    """The table's current generation."""
    buffered: Buffered
    persisted: PersistedRows
    oldest_buffered_s: float | None = None
    """Age of the oldest unflushed row; null if nothing is buffered."""
    checkpoints: CheckpointStatus = CheckpointStatus()
    transformers: list[TransformerStatus] = []
    """The table's transformer classes, in order."""
    published: list[PublishedFormat] = []
    """The table in open formats."""
    ack: Level = "disk"
    """The level at which this daemon acknowledges writes to the table."""


class PersistRun(msgspec.Struct, frozen=True, kw_only=True):
    """One finished flush of one partition; ``total_s`` runs from the freeze to the commit."""

    at: str
    namespace: str
    table: str
    partition: str
    rows: int
    bytes: int
    queued_s: float
    active_s: float
    total_s: float


class PersistStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Flushes, waiting, running and finished, since the daemon started."""

    queued_jobs: int = 0
    queued_bytes: int = 0
    active: int = 0
    persisted: PersistedRows = PersistedRows()
    failed_attempts: int = 0
    last: list[PersistRun] = []
    """The last flushes, newest first."""


class LogStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The write-ahead log on local disk."""

    segments: int = 0
    bytes: int = 0
    open_segment: int | None = None
    created_segments: int = 0
    """Segments created since the start."""
    syncs: int = 0
    last_sync_s: float | None = None
    """Duration of the last sync."""
    pending: int = 0
    """Operations waiting for their sync."""


class LostOperations(msgspec.Struct, frozen=True, kw_only=True):
    """Operations of a table that were acknowledged at ``disk`` and are lost with the disk."""

    namespace: str
    table: str
    epoch: int
    """The epoch of the process that acknowledged them."""
    operations: int
    """As many as the last log object knew of, whatever was written or flushed after it."""


class StoreLogStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The log in the object store. Counts are since the start."""

    ack: Level = "disk"
    """The daemon's level of acknowledgements; namespaces and tables may have their own."""
    disk: bool = True
    """Whether there is a log on local disk (``wal.disk``)."""
    state: StoreLogState = "unused"
    """``unused``: nothing has been shipped since the start; ``ok``; ``failing``: the last PUT
    failed and is repeated; ``fenced``: another process has the id."""
    objects: int = 0
    """Log objects of this id in the store, as far as known."""
    bytes: int = 0
    """Bytes of these objects."""
    puts: int = 0
    """Log objects created."""
    put_bytes: int = 0
    put_s: float = 0.0
    """Seconds that creating these objects took, in total."""
    in_flight: int = 0
    """PUTs without an answer yet."""
    waiting_bytes: int = 0
    """Bytes of operations that wait for their log object."""
    oldest_waiting_s: float | None = None
    """How long the oldest of these operations has waited; null if none waits."""
    failed_puts: int = 0
    """PUTs that failed and were repeated."""
    last_error: str | None = None
    """The last failure of a PUT, even if it has passed."""
    lost: list[LostOperations] = []
    """Operations lost with a disk that this process replaced, at most 100 tables."""


class CleanUpStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Garbage collection since the start; one run cleans one table."""

    runs: int = 0
    failed_runs: int = 0
    deleted_objects: int = 0
    deleted_bytes: int = 0
    last_run_at: str | None = None
    last_run_s: float | None = None
    """Duration of the last run, successful or not."""


class CompactionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Compaction since the start; one run merges small files of one table."""

    runs: int = 0
    failed_runs: int = 0
    conflicts: int = 0
    """Groups of files that another writer changed meanwhile."""
    replaced_files: int = 0
    replaced_bytes: int = 0
    new_files: int = 0
    new_bytes: int = 0
    last_run_at: str | None = None
    last_run_s: float | None = None
    """Duration of the last run, successful or not."""


class OriginStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of one origin; unknown sequences are null.

    Attributes:
        durable_sequence: Everything up to it is in files or log objects.
        files_sequence: Everything up to it is in files.
    """

    origin: str
    memory_sequence: int | None = None
    durable_sequence: int | None = None
    files_sequence: int | None = None
    open: bool = False


class StreamStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Query streams: open, and stalled because the client reads nothing."""

    open: int = 0
    stalled: int = 0
    waiting: int = 0
    """Follower calls that wait for new rows."""
    files: int = 0
    """Local files with rows of keyed answers that are still to be sent."""
    file_bytes: int = 0


class SqlStatus(msgspec.Struct, frozen=True, kw_only=True):
    """SQL queries, and the worker processes that run them. Counts are since the start."""

    available: bool = False
    """Whether the extra ``sql`` is installed and ``sql.enabled`` is set."""
    running: int = 0
    waiting: int = 0
    """Queries that wait for a worker."""
    workers: int = 0
    """Worker processes that are alive."""
    spilled_bytes: int = 0
    """Disk space that running queries use now."""
    started: int = 0
    done: int = 0
    """Queries whose answer was read, completely or as far as its client wanted."""
    failed: int = 0
    """Queries that ended with an error: an invalid statement, a limit, a worker that died."""
    cancelled: int = 0
    """Queries ended by their client, or because it disconnected."""
    timed_out: int = 0
    """Queries that took longer than ``sql.max_time``."""
    rows: int = 0
    """Rows returned."""


class FollowerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A follower of a table, by its calls to this daemon."""

    namespace: str
    table: str
    name: str
    alive: bool
    """Whether it has called within the last 30 seconds."""
    table_version: int
    """The generation that its readers see."""
    prepared: list[int] = []
    """Other generations of which it has a copy."""


class SeenPush(PushStatus, frozen=True, kw_only=True):
    """A push as its controller last published it."""

    led: bool
    """Whether it is active and was published within the last minute; otherwise it has no
    controller."""
    told_s: float
    """Seconds since it was published, by the store's clock."""


class UnreadablePush(msgspec.Struct, frozen=True, kw_only=True):
    """An object below ``_push_status/`` that is not a push status, and why."""

    path: str
    reason: str


class PushReading(msgspec.Struct, frozen=True, kw_only=True):
    """How reading the statuses of pushes works."""

    read_at: str | None = None
    failure: str | None = None
    """Why the last read failed; ``pushes`` are then those of ``read_at``."""
    left_out: int = 0
    """The number of older pushes that are not shown."""
    unreadable: list[UnreadablePush] = []


class ReplicationStatus(ReplicationReport, frozen=True, kw_only=True):
    """A replication into this daemon, by its replicator's last report."""

    phases: dict[Phase, int]
    """The number of tables in each phase, including those not named."""
    alive: bool
    """Whether it has reported within the last 30 seconds and has not ended."""
    heard_at: str
    heard_s: float
    """Seconds since the last report; lags are as of then."""
    rivals: int = 0
    """Other replicators that report the same origin at the same time."""


class CertificateStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The certificate that new connections get."""

    subject: str
    names: list[str]
    serial: str
    not_before: str
    not_after: str
    """When the first certificate of the chain expires."""
    ends_in_s: float
    """Seconds until then; negative once it has expired."""
    reloads: int = 0
    failed_reloads: int = 0
    problem: str | None = None
    """Why the changed files were not loaded."""


class TokenStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of callers, and the audit log."""

    valid: int = 0
    """Tokens in the file that are neither revoked nor expired."""
    failed_readings: int = 0
    """How often tokens or a provider's keys could not be read."""
    problems: list[str] = []
    """Why tokens or keys cannot be read now; the previous ones remain valid."""
    audited: int = 0
    """Lines written to the audit log since the start."""
    audit_left_out: int = 0
    """Refusals beyond the audit log's limit, and lines that could not be written."""


class SecurityStatus(msgspec.Struct, frozen=True, kw_only=True):
    """TLS and authentication."""

    tls: bool = False
    client_certificates: bool = False
    """Whether clients must present a certificate."""
    tokens: bool = False
    insecure: bool = False
    """Whether other machines reach a listener without TLS or tokens."""
    exposed: list[str] = []
    """The listeners that other machines reach, by the names of their settings."""
    certificate: CertificateStatus | None = None
    callers: TokenStatus = TokenStatus()


class NamespaceQuotas(msgspec.Struct, frozen=True, kw_only=True):
    """The quotas of a namespace; 0 is none."""

    buffer_bytes: int = 0
    bytes_per_s: int = 0
    requests_per_s: int = 0
    tables: int = 0
    partitions: int = 0
    streams: int = 0


class NamespaceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The use and quotas of a namespace."""

    namespace: str
    bytes: int = 0
    """Bytes in buffers and in admitted batches."""
    queued_bytes: int = 0
    """Bytes of frozen buffers waiting to be flushed."""
    partitions: int = 0
    tables: int = 0
    """Open tables."""
    writers: int = 0
    answers: int = 0
    """Running queries and waiting follower calls."""
    refused: int = 0
    """Refusals by its quotas, or because it used more than its share."""
    over_share: bool = False
    """Whether it uses more memory than an equal share, so that it is refused first."""
    quota: NamespaceQuotas = NamespaceQuotas()


class DrainStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of ``ingester drain``.

    ``draining`` refuses writes and flushes everything; ``drained`` has nothing left and may be
    stopped. Both answer queries.
    """

    state: DrainState = "none"
    since: str | None = None
    buffers: int = 0
    """Buffers whose rows are in no file yet."""
    bytes: int = 0
    """Bytes of rows that are in no file yet."""
    tables: int = 0
    """Tables whose manifest still names this daemon as a writer."""
    problem: str | None = None
    """The last failure; the drain retries."""


class AdoptionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A data directory or log in the store of ``recovery.adopt``.

    ``held`` by its daemon; ``absent``: no log, or none with rows in no file; ``waiting``: free for
    less than ``recovery.adopt_after``; ``failed`` and ``refused`` are retried.
    """

    directory: str
    """The data directory, or ``store:ID``."""
    state: AdoptionState
    at: str
    """When this state was found."""
    rows: int = 0
    """Rows that adoptions have committed since the start."""
    refused_rows: int = 0
    """Rows that remain only in the log."""
    problem: str | None = None


class DaemonStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer."""

    identity: Identity
    alarms: list[Alarm] = []
    """The raised alarms, critical ones first, the oldest first of each severity."""
    store_state: StoreState = StoreState()
    disk: DiskStatus = DiskStatus()
    oldest_unpersisted_s: float | None = None
    """Age of the oldest unflushed row; null if there is none. After a restart the age of its log
    segment, a lower bound."""
    admission: Admission
    rates: RateSpans
    counts: dict[str, int] = {}
    """The number of ``tables``, ``origins``, ``followers``, ``replications`` and ``namespaces``."""
    tables: list[TableStatus]
    """The tables with the most buffered bytes, at most 100."""
    persist: PersistStatus
    log: LogStatus
    store_log: StoreLogStatus = StoreLogStatus()
    origins: list[OriginStatus]
    """The origins, open ones first, at most 100."""
    checkpoints: CheckpointStatus = CheckpointStatus()
    streams: StreamStatus
    sql: SqlStatus = SqlStatus()
    followers: list[FollowerStatus] = []
    """The followers, live ones first, at most 100; one that stopped calling is kept for ten
    minutes."""
    replications: list[ReplicationStatus] = []
    """The replications, at most 10, with their tables that do not follow and some that do; one that
    has ended is kept for a day."""
    clean_up: CleanUpStatus = CleanUpStatus()
    publishing: PublishStatus = PublishStatus()
    compaction: CompactionStatus = CompactionStatus()
    transform: TransformStatus = TransformStatus()
    pushes: list[SeenPush] = []
    """The pushes in this store: active ones first, the newest of each first."""
    push_reading: PushReading = PushReading()
    drain: DrainStatus = DrainStatus()
    adoptions: list[AdoptionStatus] = []
    """The logs of other daemons that this one watches."""
    security: SecurityStatus = SecurityStatus()
    namespaces: list[NamespaceStatus] = []
    """The namespaces that use the most memory, at most 100."""
    log_levels: LogLevelStatus = LogLevelStatus()
    errors: list[Problem]
    """The last 20 warnings and errors of the log, newest first."""


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The last minutes as one value per step and figure: the answer of ``/api/history``."""

    step_s: float
    """Seconds between two values."""
    at: list[str]
    """The time of each value, oldest first. While the event loop was blocked, values are
    missing."""
    series: dict[str, list[float | None]]
    """Values by name, each list as long as ``at``; null if there was nothing to measure."""


_encoder = msgspec.json.Encoder()


def encode_status(status: DaemonStatus) -> bytes:
    """Return the JSON (UTF-8) of ``/api/status`` and of the Flight action ``status``."""
    return _encoder.encode(status)
