"""The status of a daemon on the wire: ``/api/status`` and the Flight action ``status``.

Law: one struct for one JSON object, names as in JSON, units in the names (``_bytes``, ``_s``)
except in ``rows``, ``bytes`` and ``files``, which say it themselves. Sizes of a buffer are bytes of
memory, sizes of what is persisted are bytes of files. Times are ISO 8601 in UTC. Unknown values are
null. Readers ignore fields that they do not know, so that fields may be added.

The answer is bounded: of lists that grow with load it has the top, and ``counts`` how long they
are. The rest is to be had by pages (:mod:`ingester.observability.status_lists`).

Pure: no trio, no sockets, no files.
"""

from typing import Literal

import msgspec

from ingester.observability.log_levels import LogLevelStatus
from ingester.observability.logs import Problem
from ingester.observability.standing import Alarm as Alarm
from ingester.observability.standing import DiskStatus as DiskStatus
from ingester.observability.standing import StoreState as StoreState
from ingester.reports.pushes import (
    PushStatus,
)
from ingester.reports.replications import Phase, ReplicationReport

State = Literal["starting", "ready", "draining", "drained", "stopping", "fenced"]
AdoptionState = Literal["held", "absent", "waiting", "adopting", "adopted", "failed", "refused"]
DrainState = Literal["none", "draining", "drained"]


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of this daemon, and where it can be reached."""

    ingester_id: str
    incarnation: str
    epoch: int
    version: str
    pid: int
    started_at: str
    uptime_s: float
    state: State
    flight: str
    """The address as clients dial it: ``grpc://127.0.0.1:8082``."""
    http: str
    store: str
    """URL of the object storage, without credentials."""


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """A reason why writes are refused; ``code`` is one of the codes that Flight errors carry."""

    code: str
    message: str
    retry_after_s: float | None = None


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that count against ``memory.limit``, beside the watermarks."""

    used_bytes: int
    limit_bytes: int
    low_bytes: int
    high_bytes: int
    by_kind: dict[str, int] = {}
    """Bytes by what holds them (``buffer``, ``frozen``, ``job``, ``answer``, …)."""


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a write would be taken now; without reasons exactly when it would."""

    accepts_writes: bool
    reasons: list[Reason]
    memory: Memory


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Means per second over one span of time."""

    rows_per_s: float = 0.0
    bytes_per_s: float = 0.0
    operations_per_s: float = 0.0
    queries_per_s: float = 0.0


class RateSpans(msgspec.Struct, frozen=True, kw_only=True):
    """Rates over a short span and a longer one."""

    last_10s: Rates = Rates()
    last_60s: Rates = Rates()


class Buffered(msgspec.Struct, frozen=True, kw_only=True):
    """The rows that queries read from memory."""

    rows: int = 0
    bytes: int = 0
    partitions: int = 0


class Persisted(msgspec.Struct, frozen=True, kw_only=True):
    """The rows that are in committed files."""

    rows: int = 0
    bytes: int = 0
    files: int = 0


class CheckpointStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The states of sources: of a table, or of all that are open."""

    count: int = 0
    bytes: int = 0
    """Bytes of states, and of those that they share."""
    pending: int = 0
    """Partitions whose newest state is in the log only."""


class TransformerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A class that a table's batches go through, and its version when it was last put in force."""

    name: str = msgspec.field(name="class")
    version: str
    previous: str | None = None
    """The version before; null where the class has had no other."""


class TransformStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The threads that run transformers."""

    busy_threads: int = 0
    hung_calls: dict[str, int] = {}
    """Calls that were given up and still run, by class."""


class TableStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One table: its newest manifest version and where its rows are."""

    namespace: str
    table: str
    manifest_version: int | None
    table_version: int = 1
    """The version of the table as a whole that counts."""
    buffered: Buffered
    persisted: Persisted
    oldest_buffered_s: float | None = None
    """Age of the oldest row that is not yet in a file; null when nothing is buffered."""
    checkpoints: CheckpointStatus = CheckpointStatus()
    transformers: list[TransformerStatus] = []
    """The classes that the table's batches go through, in order."""


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
    """The way from frozen buffers to committed files, since this daemon started."""

    queued_jobs: int = 0
    queued_bytes: int = 0
    active: int = 0
    persisted: Persisted = Persisted()
    failed_attempts: int = 0
    last: list[PersistRun] = []
    """Newest first, a handful."""


class LogStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The write-ahead log on local disk."""

    segments: int = 0
    bytes: int = 0
    open_segment: int | None = None
    created_segments: int = 0
    """Segments begun since the start."""
    syncs: int = 0
    last_sync_s: float | None = None
    """The seconds that the last sync took."""
    pending: int = 0
    """Operations that wait for their sync."""


class CleanUpStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The clean-ups of this daemon since it started; each table cleaned is a run."""

    runs: int = 0
    failed_runs: int = 0
    deleted_objects: int = 0
    deleted_bytes: int = 0
    last_run_at: str | None = None
    last_run_s: float | None = None
    """The seconds that the last clean-up took, whatever came of it."""


class OriginStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of one origin's writes; null where nothing is known."""

    origin: str
    memory_sequence: int | None = None
    durable_sequence: int | None = None
    open: bool = False


class StreamStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Query streams: all that are open, and those whose client has stopped reading."""

    open: int = 0
    stalled: int = 0
    waiting: int = 0
    """The calls of followers that wait for something new."""
    files: int = 0
    """The number of files on local disk with rows of keyed answers that are sent later."""
    file_bytes: int = 0


class FollowerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A follower of a table, by what its calls to this daemon say."""

    namespace: str
    table: str
    name: str
    alive: bool
    """Whether it calls, or has called within the last half minute."""
    table_version: int
    """The version that its readers see."""
    prepared: list[int] = []
    """Other versions of which it has a copy."""


class SeenPush(PushStatus, frozen=True, kw_only=True):
    """A push as its leader has told of it last."""

    led: bool
    """Whether it is under way, and was told within the last minute: else nobody leads it now."""
    told_s: float
    """The seconds since it was told, by the store's clock."""


class UnreadablePush(msgspec.Struct, frozen=True, kw_only=True):
    """An object below ``_push_status/`` that is no push status, and why not."""

    path: str
    reason: str


class PushReading(msgspec.Struct, frozen=True, kw_only=True):
    """How the pushes are read that the daemon shows."""

    read_at: str | None = None
    failure: str | None = None
    """Why the last reading failed; ``pushes`` are those of ``read_at`` then."""
    left_out: int = 0
    """The number of older pushes that are not shown."""
    unreadable: list[UnreadablePush] = []


class ReplicationStatus(ReplicationReport, frozen=True, kw_only=True):
    """A replication into this daemon, by the last report of its replicator."""

    phases: dict[Phase, int]
    """The number of tables in each phase, with those that are not named."""
    alive: bool
    """Whether it has reported within the last half minute, and has not ended."""
    heard_at: str
    heard_s: float
    """The seconds since it was heard; lags are those of then."""
    rivals: int = 0
    """Other replicators that report the same origin at the same time."""


class CertificateStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The certificate that new connections are shown."""

    subject: str
    names: list[str]
    serial: str
    not_before: str
    not_after: str
    """The end of the first of its chain that ends."""
    ends_in_s: float
    """The seconds until then; below zero, clients refuse it."""
    reloads: int = 0
    failed_reloads: int = 0
    problem: str | None = None
    """Why the files as they are now were not taken up."""


class TokenStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens by which callers are known, and the audit log."""

    valid: int = 0
    """Tokens of the file that are neither revoked nor expired."""
    failed_readings: int = 0
    """How often tokens or a provider's keys could not be read."""
    problems: list[str] = []
    """Why tokens or keys cannot be read as they are now: those of before are in force."""
    audited: int = 0
    """Lines of the audit log since the start."""
    audit_left_out: int = 0
    """Refusals beyond the log's bounds, and lines that could not be written."""


class SecurityStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Who may come in."""

    tls: bool = False
    client_certificates: bool = False
    """Whether clients have to show one."""
    tokens: bool = False
    insecure: bool = False
    """Whether other machines reach a listener that lacks TLS or tokens."""
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
    """What a namespace has of the daemon, beside its quotas."""

    namespace: str
    bytes: int = 0
    """Bytes in buffers, and of batches on their way there."""
    queued_bytes: int = 0
    """Bytes of frozen buffers that wait to be persisted."""
    partitions: int = 0
    tables: int = 0
    """Tables that are open here."""
    writers: int = 0
    answers: int = 0
    """Answers under way, and calls of followers that wait."""
    refused: int = 0
    """Refusals by its quotas, or for having more than its share."""
    over_share: bool = False
    """Whether it has more memory than an equal share, and is refused first when that is short."""
    quota: NamespaceQuotas = NamespaceQuotas()


class DrainStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon's way out, where ``ingester drain`` has asked for it.

    ``draining`` takes no writes and puts what it has into files; ``drained`` has nothing left, and
    may be stopped. Both answer queries.
    """

    state: DrainState = "none"
    since: str | None = None
    buffers: int = 0
    """Buffers whose rows are in no file yet."""
    bytes: int = 0
    """Bytes of rows that are in no file yet."""
    tables: int = 0
    """Tables whose manifest does not say yet that this daemon writes no more."""
    problem: str | None = None
    """Why the drain has not come further; it goes on trying."""


class AdoptionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A data directory of ``recovery.adopt``.

    ``held`` by its daemon; ``absent``: there is no log; ``waiting``: free for less than
    ``recovery.adopt_after``; ``failed`` and ``refused`` are tried again.
    """

    directory: str
    state: AdoptionState
    at: str
    """When it was found so."""
    rows: int = 0
    """Rows that this adoption has brought into tables."""
    refused_rows: int = 0
    """Rows that stay in the log only."""
    problem: str | None = None


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer."""

    identity: Identity
    alarms: list[Alarm] = []
    """What somebody has to see to now, the critical ones first, the oldest of each first."""
    store_state: StoreState = StoreState()
    disk: DiskStatus = DiskStatus()
    oldest_unpersisted_s: float | None = None
    """The age of the oldest row that is in no file; null where every row is in one. Of a row that
    a restart has replayed, the age of its segment of the log: it is at least so old."""
    admission: Admission
    rates: RateSpans
    counts: dict[str, int] = {}
    """How many ``tables``, ``origins``, ``followers``, ``replications`` and ``namespaces`` there
    are in all."""
    tables: list[TableStatus]
    """The tables with the most buffered bytes, 100 at most."""
    persist: PersistStatus
    log: LogStatus
    origins: list[OriginStatus]
    """The origins, those that are open first, 100 at most."""
    checkpoints: CheckpointStatus = CheckpointStatus()
    streams: StreamStatus
    followers: list[FollowerStatus] = []
    """The followers of tables here, those that are alive first, 100 at most; one that is gone is
    kept for ten minutes."""
    replications: list[ReplicationStatus] = []
    """The replications into this daemon, 10 at most, with those of their tables that do not follow,
    and some that do; one that has ended is kept for a day."""
    clean_up: CleanUpStatus = CleanUpStatus()
    transform: TransformStatus = TransformStatus()
    pushes: list[SeenPush] = []
    """The pushes of which this store was told: those under way first, the newest of each first."""
    push_reading: PushReading = PushReading()
    drain: DrainStatus = DrainStatus()
    adoptions: list[AdoptionStatus] = []
    """The data directories that this daemon looks after."""
    security: SecurityStatus = SecurityStatus()
    namespaces: list[NamespaceStatus] = []
    """The namespaces with the most in memory, 100 at most."""
    log_levels: LogLevelStatus = LogLevelStatus()
    errors: list[Problem]
    """The last 20 warnings and errors of the log, newest first."""


_encoder = msgspec.json.Encoder()


def encode_status(status: Status) -> bytes:
    """Give the JSON body (UTF-8) of ``/api/status`` and of the Flight action ``status``."""
    return _encoder.encode(status)
