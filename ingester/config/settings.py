"""The daemon's settings as frozen structs. Sizes are bytes and durations are seconds.

This module is pure: it holds fields, defaults and ranges. :mod:`ingester.config.sources` reads the
values from flags, environment and file. A field's type has its range, and every struct checks
itself when it is made, so each existing ``Settings`` is valid. ``make docs`` copies the docstring
below a field into ``docs/settings.md``.
"""

import math
import re
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from ingester.memory.machine import usable_bytes
from ingester.secret_texts import masked

from .units import format_duration, format_size, parse_duration, parse_percent, parse_size

KiB, MiB, GiB, TiB = 1024, 1024**2, 1024**3, 1024**4
DAY_S = 86400.0


class ConfigError(ValueError):
    """An invalid setting. ``key`` is its dotted name; the message contains the value."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key}: {message}")
        self.key = key


class Range(NamedTuple):
    """The smallest and the largest value of a setting, and how values are written."""

    low: float
    high: float
    show: Callable[[Any], str] = str
    parse: Callable[[object], float] | None = None
    """Reads what :attr:`show` writes; None for plain numbers."""

    def check(self, key: str, value: float) -> None:
        """Raise :class:`ConfigError` for a value out of range."""
        if not self.low <= value <= self.high:
            low, high = self.show(self.low), self.show(self.high)
            raise ConfigError(key, f"{self.show(value)} is out of range ({low} to {high})")


def _bytes(low: float, high: float) -> Range:
    return Range(low, high, format_size, parse_size)


def _seconds(low: float, high: float) -> Range:
    return Range(low, high, format_duration, parse_duration)


def range_of(kind: object) -> Range | None:
    """Return the range in a field's type, or None."""
    found = (each for each in getattr(kind, "__metadata__", ()) if isinstance(each, Range))
    return next(found, None)


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT`` (``[::1]:8080`` for IPv6). Port 0 picks a free one.

    Raises:
        ValueError: the port is missing or not between 0 and 65535.
    """
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{address!r}: write an IPv6 host in brackets, as in [::1]:8082")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(f"{address!r} is not HOST:PORT with a port from 0 to 65535")
    return host, int(port)


class _Address:
    """The type of a ``HOST:PORT`` setting."""

    def check(self, key: str, value: str) -> None:
        """Raise :class:`ConfigError` for an address that :func:`split_address` refuses."""
        try:
            split_address(value)
        except ValueError as exc:
            raise ConfigError(key, str(exc)) from exc


class _Section(msgspec.Struct, frozen=True, kw_only=True):
    """A section that checks each of its fields by its type."""

    def __post_init__(self) -> None:
        # WalStoreSettings is the section wal.store.
        words = re.findall("[A-Z][a-z]*", type(self).__name__.removesuffix("Settings"))
        section = ".".join(words).lower()
        for field in msgspec.structs.fields(self):
            for each in getattr(field.type, "__metadata__", ()):
                key = f"{section}.{field.name}" if section else field.name
                each.check(key, getattr(self, field.name))


_LOG_IN_STORE = re.compile(r"store:[A-Za-z0-9*][A-Za-z0-9_.*-]{0,127}")


def _check_namespace(section: str, name: str) -> None:
    if not name or "/" in name:
        raise ConfigError(section, f"{name!r} is not a namespace")


class FlightSettings(_Section, frozen=True, kw_only=True):
    """The gRPC server."""

    listen: Annotated[str, _Address()] = "127.0.0.1:8082"
    """Address of the gRPC server; port 0 picks a free one."""
    advertise: str = ""
    """URL at which clients reach this daemon, as ``grpc://pod-0.ingester:8082``, if it differs from
    ``flight.listen``."""
    # gRPC carries message lengths in 31 bits.
    max_batch_bytes: Annotated[int, _bytes(KiB, 2 * GiB - MiB)] = 64 * MiB
    """Largest batch, measured after decompression; larger ones are refused."""
    max_unanswered: Annotated[int, Range(1, 1_000_000)] = 1024
    """The server stops reading a stream at this many unanswered batches, or at 64 MiB of them."""


class HttpSettings(_Section, frozen=True, kw_only=True):
    """Health, metrics, status and the operator's page."""

    listen: Annotated[str, _Address()] = "127.0.0.1:8080"
    """Address of health, metrics, status and the operator's page."""
    hosts: list[str] = []
    """Host names accepted in requests, besides the daemon's own and loopback names, as
    ``["ingester.example.org", ".ingester.svc"]`` (a leading dot includes all subdomains). Other
    names get 421, which protects against DNS rebinding. IP addresses and ``/health`` are always
    accepted."""
    idle_timeout: Annotated[float, _seconds(0.1, DAY_S)] = 15.0
    """An HTTP connection is closed if it has not sent a complete request for this long."""


class AuthSettings(_Section, frozen=True, kw_only=True):
    """Authentication. Without ``tokens`` and ``jwks`` every caller may do everything."""

    tokens: str = ""
    """Token file, as ``ingester tokens`` writes it; reloaded when it changes. If this or
    ``auth.jwks`` is set, requests without a token are refused."""
    jwks: str = ""
    """Signing keys of the OpenID Connect provider whose tokens (JWT) are accepted: a file or an
    ``https://`` URL. Requires ``auth.issuer`` and ``auth.audience``."""
    issuer: str = ""
    """Required ``iss`` claim of a JWT."""
    audience: str = ""
    """Required ``aud`` claim of a JWT."""
    namespace_claim: str = "ingester"
    """Claim of a JWT that holds its grants, a list such as ``["shop:read,write", "*:read"]``."""
    open: list[str] = []
    """Endpoints that need no token, besides ``/health`` and the page: ``metrics``, ``status``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.jwks and not (self.issuer and self.audience):
            missing = "issuer" if not self.issuer else "audience"
            raise ConfigError(
                f"auth.{missing}",
                "required with auth.jwks, or tokens for other services pass",
            )
        for name in self.open:
            if name not in ("metrics", "status"):
                raise ConfigError("auth.open", f"{name!r} is not metrics or status")

    @property
    def enabled(self) -> bool:
        """Whether callers need a token."""
        return bool(self.tokens or self.jwks)


class AuditSettings(_Section, frozen=True, kw_only=True):
    """The audit log."""

    file: str = ""
    """Audit log file: one JSON object a line for each administrative action and refusal; ``-`` is
    standard error. Reopened on SIGHUP."""


class LimitsSettings(_Section, frozen=True, kw_only=True):
    """Upper limits on what clients can create."""

    columns: Annotated[int, Range(1, 10_000)] = 2_000
    """Maximum number of columns of a table; a table that already has more keeps them."""
    dictionaries: Annotated[int, Range(0, 10_000)] = 1_000
    """Maximum number of dictionary-encoded fields in a stream's schema, nested ones included."""
    nesting: Annotated[int, Range(1, 32)] = 32
    """Deepest nesting of a type in a stream's schema."""
    name_bytes: Annotated[int, Range(1, 255)] = 255
    """Longest name of a new column, of a field inside one, or of an origin, in bytes."""
    metadata_bytes: Annotated[int, _bytes(KiB, 16 * MiB)] = MiB
    """Maximum metadata of a schema including its fields, and of a batch without its checkpoint
    states."""
    partitions: Annotated[int, Range(1, 10_000_000)] = 10_000
    """Maximum number of partitions of a table with buffered rows. A batch that needs more is
    refused with ``limit``, and the table's buffers are flushed."""
    daemon_partitions: Annotated[int, Range(1, 10_000_000)] = 100_000
    """Maximum number of partitions with buffered rows over all tables."""
    tables: Annotated[int, Range(1, 1_000_000)] = 10_000
    """Maximum number of open tables; further ones are not created."""
    namespaces: Annotated[int, Range(1, 1_000_000)] = 1_000
    """Maximum number of namespaces with open tables; tables in further ones are not created."""
    origins: Annotated[int, Range(1, 10_000_000)] = 100_000
    """Maximum number of remembered origins; further ones are refused with ``limit``."""
    checkpoints: Annotated[int, Range(1, 1_000_000)] = 10_000
    """Maximum number of source partitions whose checkpoint a table keeps."""
    transactions: Annotated[int, Range(1, 1_000_000)] = 1_000
    """Maximum number of open transactions; further ones are refused with ``limit``."""


class TlsSettings(_Section, frozen=True, kw_only=True):
    """TLS of the gRPC and HTTP listeners. Replaced files are reloaded."""

    cert: str = ""
    """Certificate (PEM), followed by its intermediates. If set, both listeners accept only TLS 1.2
    or later."""
    key: str = ""
    """Private key of the certificate (PEM, without a passphrase)."""
    client_ca: str = ""
    """Certificate authorities (PEM) of clients: enables mutual TLS. Flight and HTTP then require a
    client certificate, also for the health routes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.cert) != bool(self.key):
            missing, there = ("key", "cert") if self.cert else ("cert", "key")
            raise ConfigError(f"tls.{missing}", f"is required with tls.{there}")
        if self.client_ca and not self.cert:
            raise ConfigError("tls.client_ca", "requires tls.cert and tls.key")


class WalStoreSettings(_Section, frozen=True, kw_only=True):
    """The log in the object store, of what is acknowledged at the level ``store``."""

    # More than this, and a batch that only waits looks like a store that does not answer: to the
    # alarm after 10 s, to clients after 30 s.
    interval: Annotated[float, _seconds(0.001, 5)] = 0.1
    """Shortest time between two log objects. A batch at the level ``store`` waits up to this
    long before it is sent to the store."""
    max_bytes: Annotated[int, _bytes(KiB, 256 * MiB)] = 8 * MiB
    """Size at which a log object is sent before ``wal.store.interval`` has passed."""


class WalSettings(_Section, frozen=True, kw_only=True):
    """The write-ahead log."""

    disk: Literal["on", "off"] = "on"
    """Whether there is a log on the local disk. With ``off`` all tables have the acknowledgement
    level ``store``, and ``data_dir`` is scratch space."""

    fsync: Literal["commit", "interval", "off"] = "commit"
    """When writes are synced to disk: before they are acknowledged (``commit``), every
    ``wal.fsync_interval`` (``interval``), or by the kernel (``off``)."""
    fsync_interval: Annotated[float, _seconds(0.001, 60)] = 0.1
    """Time between two syncs with ``wal.fsync = "interval"``; ignored otherwise."""
    segment_bytes: Annotated[int, _bytes(4 * KiB, 4 * GiB)] = 64 * MiB
    """Size at which a log segment is closed. Under load up to two unneeded segments are kept for
    reuse."""
    segment_age: Annotated[float, _seconds(0.1, 30 * DAY_S)] = 300.0
    """Age at which a log segment is closed."""
    store: WalStoreSettings = WalStoreSettings()


class PersistSettings(_Section, frozen=True, kw_only=True):
    """When a partition's buffer is flushed, and how files are written."""

    max_age: Annotated[float, _seconds(0.01, 30 * DAY_S)] = 300.0
    """Age of a buffer's oldest row at which the buffer is flushed."""
    max_partition_bytes: Annotated[int, _bytes(KiB, TiB)] = 64 * MiB
    """Size at which a partition's buffer is flushed."""
    workers: Annotated[int, Range(1, 256)] = 2
    """Threads that sort and encode. Each partition is flushed in order, two of its buffers at a
    time."""
    queue_bytes: Annotated[int, _bytes(KiB, TiB)] = 512 * MiB
    """Maximum bytes waiting to be flushed; beyond it, writes are refused with ``saturated``."""
    target_file_bytes: Annotated[int, _bytes(KiB, 16 * GiB)] = 128 * MiB
    """Target size of a data file; a larger flush writes several files."""


# Their ranges depend on the limit: see MemorySettings.
_WATERMARK = _bytes(-math.inf, math.inf)


class MemorySettings(_Section, frozen=True, kw_only=True):
    """Memory watermarks. ``low`` and ``high`` default to 50 % and 90 % of ``limit``."""

    limit: Annotated[int, _bytes(MiB, 1024**5)] = msgspec.field(
        default_factory=lambda: usable_bytes() // 2
    )
    """Memory for buffers, flushes and query answers. Defaults to half of the RAM, or of the
    container's limit. See docs/sizing.md."""
    low: Annotated[int, _WATERMARK] = 0
    """Watermark above which buffers are flushed early."""
    high: Annotated[int, _WATERMARK] = 0
    """Watermark above which writes are refused with ``memory``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.low:
            msgspec.structs.force_setattr(self, "low", self.limit // 2)
        if not self.high:
            msgspec.structs.force_setattr(self, "high", self.limit * 9 // 10)
        _bytes(1, self.limit).check("memory.high", self.high)
        _bytes(1, self.high).check("memory.low", self.low)


class QuerySettings(_Section, frozen=True, kw_only=True):
    """Limits on queries and followers."""

    max_streams: Annotated[int, Range(1, 100_000)] = 1000
    """Maximum number of concurrent queries; further ones are refused with ``limit``."""
    max_followers: Annotated[int, Range(1, 100_000)] = 1000
    """Maximum number of concurrent ``live`` calls, waiting or streaming; further ones are refused
    with ``limit``. They do not count in ``query.max_streams``."""
    client_timeout: Annotated[float, _seconds(0.01, DAY_S)] = 60.0
    """A query whose client reads nothing for this long loses its snapshot."""
    tail_retain: Annotated[float, _seconds(0, DAY_S)] = 60.0
    """How long flushed buffers stay readable for clients on an older manifest version and for
    followers."""
    max_filter_terms: Annotated[int, Range(1, 10_000_000)] = 100_000
    """Maximum number of comparisons in a filter, each value of an ``in`` list counted; beyond it,
    the query is refused with ``invalid``."""
    max_filter_bytes: Annotated[int, _bytes(KiB, GiB)] = 8 * MiB
    """Largest query ticket including its filter; larger ones are refused with ``invalid``."""
    max_cpu: Annotated[float, _seconds(0.01, DAY_S)] = 60.0
    """Processor time after which a query ends with ``timeout``, if need be in the middle of its
    answer. Waiting does not count."""


class SqlSettings(_Section, frozen=True, kw_only=True):
    """SQL queries, each in a process of its own. Requires the extra ``sql``."""

    enabled: bool = True
    """Answer SQL queries."""
    workers: Annotated[int, Range(1, 64)] = 3
    """Maximum number of concurrent SQL queries, and so of their processes. Further ones wait for up
    to ten seconds and are then refused with ``limit``."""
    max_per_namespace: Annotated[int, Range(1, 64)] = 2
    """Maximum number of concurrent SQL queries that read one namespace."""
    threads: Annotated[int, Range(0, 256)] = 0
    """Processors that one SQL query may use; 0 means all. Queries run at a low priority."""
    memory: Annotated[int, _bytes(64 * MiB, 1024**5)] = msgspec.field(
        default_factory=lambda: max(256 * MiB, usable_bytes() // 8)
    )
    """Memory of one SQL query; beyond it the query spills to disk or fails. Defaults to an eighth
    of the RAM, or of the control group's limit. The process of a query may use 512 MiB more."""
    spill: Annotated[int, _bytes(0, 1024**5)] = 4 * GiB
    """Disk space that one SQL query may use in ``<data_dir>/sql``, at most half of what was free
    when its process started."""
    max_time: Annotated[float, _seconds(0.01, DAY_S)] = 300.0
    """Time after which an SQL query ends with ``timeout``. The time that its client takes to read
    counts."""
    max_rows: Annotated[int, Range(1, 1 << 62)] = 1 << 62
    """Maximum number of rows in the answer to an SQL query; a longer answer ends with
    ``invalid``."""
    idle: Annotated[float, _seconds(0, DAY_S)] = 600.0
    """How long an unused process is kept for the next SQL query."""
    peers: list[str] = []
    """Flight addresses of the other daemons of the same store, as ``["grpc://b:8082"]``. SQL
    queries also read the rows that these daemons buffer, with the caller's token."""
    peers_ca: str = ""
    """Certificate authorities (PEM) of the peers; empty for those of the system."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for peer in self.peers:
            if not peer.startswith(("grpc://", "grpc+tls://")):
                raise ConfigError(
                    "sql.peers", f"{peer!r} does not begin with grpc:// or grpc+tls://"
                )


class ManifestSettings(_Section, frozen=True, kw_only=True):
    """Refresh, garbage collection, and metadata for Spark."""

    refresh: Annotated[float, _seconds(0.01, 3600)] = 1.0
    """Interval at which commits of other daemons are looked up."""
    retain: Annotated[float, _seconds(0, 3650 * DAY_S)] = DAY_S
    """How long replaced manifest versions and their files are kept."""
    orphan_grace: Annotated[float, _seconds(0, 365 * DAY_S)] = 3600.0
    """Minimum age at which garbage collection deletes a file that no version lists."""
    spark_metadata: bool = False
    """Maintain a ``_spark_metadata`` folder beside each table's files, so that
    ``spark.read.parquet`` reads only committed files."""


OPEN_FORMATS = ("iceberg", "delta")
"""The formats of ``persist.publish``; a test compares the two."""


class _Formats:
    """The type of a list of formats."""

    def check(self, key: str, value: list[str] | None) -> None:
        """Raise :class:`ConfigError` for an unknown or repeated format."""
        for name in value or ():
            if name not in OPEN_FORMATS:
                raise ConfigError(key, f"{name!r} is not one of {', '.join(OPEN_FORMATS)}")
        if len(set(value or ())) < len(value or ()):
            raise ConfigError(key, f"{value} names a format twice")


class NamespacePublish(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The formats of one namespace's tables, which override ``publish.formats``."""

    formats: list[str]


class PublishSettings(_Section, frozen=True, kw_only=True):
    """Publishing of tables in open formats, for engines that do not know the manifest."""

    formats: Annotated[list[str], _Formats()] = []
    """Formats in which tables are published, as ``["iceberg", "delta"]``. Overridden for a
    namespace by ``[publish."acme"] formats``, for a table by ``create_table``, and for both by
    ``[tables."namespace/table"] publish``; an empty list means none."""
    interval: Annotated[float, _seconds(0.01, 30)] = 0.5
    """Shortest time between two publications of a table; versions committed meanwhile are
    published together."""
    namespaces: dict[str, NamespacePublish] = {}
    """Overrides for single namespaces: a section ``[publish."acme"]`` with ``formats =
    ["iceberg"]``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for namespace, own in self.namespaces.items():
            _check_namespace("publish", namespace)
            _Formats().check(f'publish."{namespace}".formats', own.formats)


class MaintenanceSettings(_Section, frozen=True, kw_only=True):
    """Background work on tables."""

    compact: bool = False
    """Merge small files of open tables in the background, while the daemon is not busy. See
    docs/tables.md."""


class VersionsSettings(_Section, frozen=True, kw_only=True):
    """Retention of a table's generations, which pushes create."""

    keep: Annotated[int, Range(0, 1000)] = 2
    """Number of former generations of a table to keep, and of those that a rollback could return
    to. Others are marked by garbage collection, and deleted ``manifest.orphan_grace`` later."""


class OriginsSettings(_Section, frozen=True, kw_only=True):
    """Retention of origins."""

    expire_after: Annotated[float, _seconds(1, 3650 * DAY_S)] = 7 * DAY_S
    """How long an origin's sequence numbers are remembered after its last write."""


class ReplicationSettings(_Section, frozen=True, kw_only=True):
    """When replicated changes are flushed, and limits on transactions."""

    max_lag: Annotated[float, _seconds(0.01, 30 * DAY_S)] = 600.0
    """Age of the oldest change at which a replication buffer is flushed, instead of
    ``persist.max_age``."""
    max_messages: Annotated[int, Range(1, 1 << 31)] = 100_000
    """Number of messages at which a replication buffer is flushed."""
    max_transaction_bytes: Annotated[int, _bytes(KiB, TiB)] = 256 * MiB
    """Maximum memory of one open transaction; a larger one is refused as a whole."""


class RecoverySettings(_Section, frozen=True, kw_only=True):
    """What a start accepts, and the logs of other daemons to adopt."""

    accept_lost_log: bool = False
    """Start although the last epoch under this ``id`` did not stop cleanly and its log is missing
    from ``data_dir``, because it is lost or was adopted. For a single start, like
    ``--accept-lost-log``."""
    accept_other_store: bool = False
    """Start although the store is not the one that ``data_dir`` belongs to, is empty, or was
    restored to an older state. For a single start, like ``--accept-other-store``."""
    adopt: list[str] = []
    """Data directories of other daemons to watch, and their logs in the store: ``store:ID``. When
    one has no daemon, its unflushed rows are committed to the tables. ``*`` in the last component
    matches all folders or ids."""
    adopt_after: Annotated[float, _seconds(0, DAY_S)] = 60.0
    """How long a data directory or a log in the store must be without its daemon before it is
    adopted. A live daemon shows itself in the store every 5 seconds."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for each in self.adopt:
            if each.startswith("store:") and not _LOG_IN_STORE.fullmatch(each):
                raise ConfigError("recovery.adopt", f"{each!r} is not store: and an id or pattern")


class TransformSettings(_Section, frozen=True, kw_only=True):
    """Transformers: which are allowed, and how they run."""

    allowed: list[str] = []
    """Modules whose classes a ``create_table`` or a table's manifest may name as transformers:
    names or patterns such as ``["acme.rules", "acme.lib.*"]``; none by default."""
    timeout: Annotated[float, _seconds(0.01, 3600)] = 10.0
    """Longest run of a transformer on one batch; beyond it, the batch is refused with
    ``timeout``."""
    threads: Annotated[int, Range(1, 256)] = 4
    """Concurrent transformer calls; one class can use all but one of them."""


class NamespaceQuota(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Quotas of one namespace that override ``[quotas]``; 0 is none."""

    buffer_bytes: int | str | None = None
    bytes_per_s: int | str | None = None
    requests_per_s: int | None = None
    tables: int | None = None
    partitions: int | None = None
    streams: int | None = None

    def __post_init__(self) -> None:
        for field in msgspec.structs.fields(QuotasSettings):
            limits = range_of(field.type)
            value = getattr(self, field.name, None)
            if limits is None or value is None:
                continue
            number = value if limits.parse is None else limits.parse(value)
            limits.check(field.name, number)
            msgspec.structs.force_setattr(self, field.name, number)


class QuotasSettings(_Section, frozen=True, kw_only=True):
    """Quotas of each namespace; 0 is none. Fair shares apply in any case."""

    buffer_bytes: Annotated[int, _bytes(0, TiB)] = 0
    """Maximum memory for a namespace's buffers and incoming batches. Beyond it, its writes are
    refused with ``memory`` and its buffers are flushed. 0 is no quota, as for all quotas."""
    bytes_per_s: Annotated[int, _bytes(0, TiB)] = 0
    """Average bytes a namespace may write per second. A batch of any size passes; later writes are
    refused with ``limit`` until the average is met."""
    requests_per_s: Annotated[int, Range(0, 1_000_000_000)] = 0
    """Average batches, queries and actions of a namespace per second; beyond it, they are refused
    with ``limit``."""
    tables: Annotated[int, Range(0, 1_000_000_000)] = 0
    """Maximum number of tables of a namespace; further ones are refused with ``limit``."""
    partitions: Annotated[int, Range(0, 1_000_000_000)] = 0
    """Maximum number of partitions of a namespace with buffered rows; a batch that needs more is
    refused with ``limit``."""
    streams: Annotated[int, Range(0, 1_000_000)] = 0
    """Maximum number of concurrent write streams of a namespace, and of its queries and its
    follower calls, counted separately; further ones are refused with ``limit``."""
    namespaces: dict[str, NamespaceQuota] = {}
    """Overrides for single namespaces: a section ``[quotas."acme"]`` with, for example,
    ``bytes_per_s = "10MiB"``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for namespace in self.namespaces:
            _check_namespace("quotas", namespace)

    def quota(self, namespace: str, name: str) -> tuple[int, str]:
        """Return a namespace's quota, and the setting it comes from."""
        own = self.namespaces.get(namespace)
        value = None if own is None else getattr(own, name)
        if value is None:
            return getattr(self, name), f"quotas.{name}"
        return value, f'quotas."{namespace}".{name}'


TRANSFORMER_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
"""The name of a transformer class: ``package.module:Class``."""


Level = Literal["disk", "store"]
"""What an acknowledged write survives: ``disk`` a crash of the machine, ``store`` its loss."""


class NamespaceSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one namespace's tables."""

    ack: Level | None = None


class TableSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one table."""

    transformers: list[str] | None = None
    """Transformer classes of the table, in order; an empty list means none. Overrides
    ``create_table``."""
    publish: list[str] | None = None
    """Formats in which the table is published; an empty list means none. Overrides
    ``create_table`` and ``[publish]``."""
    ack: Level | None = None
    """Acknowledgement level of the table. Overrides ``create_table`` and ``[namespaces]``."""

    def __post_init__(self) -> None:
        _Formats().check("publish", self.publish)
        for name in self.transformers or ():
            if not TRANSFORMER_NAME.fullmatch(name):
                raise ValueError(f"transformer {name!r} is not package.module:Class")
        if len(set(self.transformers or ())) < len(self.transformers or ()):
            raise ValueError(f"transformers {self.transformers} contain a class twice")


class LoggingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The log on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level to log: ``debug``, ``info``, ``warning`` or ``error``."""
    format: Literal["auto", "json", "console"] = "auto"
    """Log format: ``json``, ``console`` (for people), or ``auto``, which is ``console`` on a
    terminal and ``json`` elsewhere."""


def _share(value: object) -> float:
    """Parse a number from 0 to 1, or a percentage."""
    text = str(value)
    percent = parse_percent(text)
    return float(text) if percent is None else percent


class _HttpUrl:
    """The type of a setting that is an HTTP URL or empty."""

    def check(self, key: str, value: str) -> None:
        """Raise :class:`ConfigError` for anything but ``http://HOST:PORT``."""
        if value and not re.fullmatch(r"https?://[^\s/]+(/\S*)?", value):
            raise ConfigError(key, f"{value!r} is not a URL; use the form http://127.0.0.1:4317")


class TracingSettings(_Section, frozen=True, kw_only=True):
    """OpenTelemetry traces, with the extra ``otel``. ``OTEL_*`` variables override these."""

    endpoint: Annotated[str, _HttpUrl()] = ""
    """OTLP receiver of spans, as ``http://127.0.0.1:4317``. Empty turns tracing off, unless
    ``OTEL_EXPORTER_OTLP_ENDPOINT`` or ``OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`` is set."""
    protocol: Literal["grpc", "http"] = "grpc"
    """OTLP over ``grpc`` (usually port 4317) or ``http`` with protobuf (usually port 4318)."""
    sample: Annotated[float, Range(0, 1, "{:g}".format, _share)] = 0.01
    """Share of batches, queries, other calls and flushes to trace: ``0.01`` or ``1%``. A caller's
    ``traceparent`` overrides it."""
    max_asked_per_s: Annotated[int, Range(0, 1_000_000)] = 100
    """Maximum number of batches and calls per second traced at the caller's request; beyond it,
    ``tracing.sample`` applies."""
    queue_spans: Annotated[int, Range(64, 1_000_000)] = 8192
    """Maximum number of spans waiting for the receiver; more are dropped."""


class Settings(_Section, frozen=True, kw_only=True):
    """All settings of the daemon. ``Settings()`` is complete: the daemon runs on its defaults.

    ``store`` empty means ``file://<data_dir>/store``; read :attr:`store_url`.
    """

    id: str = msgspec.field(default_factory=socket.gethostname)
    """Stable name of this daemon. A second daemon with the same name fences the first."""
    data_dir: Path = Path("ingester-data")
    """Folder of the log, spilled rows and the lock. Use a local disk."""
    store: str = ""
    """Object storage URL: ``file://``, ``s3://``, or any fsspec URL whose store supports
    conditional creation."""
    store_options: dict[str, Any] = {}
    """Options of the store, such as ``endpoint_url``: for S3 see docs/s3.md, else fsspec's."""
    catalog_options: dict[str, Any] = {}
    """Iceberg catalogue in which tables published as ``iceberg`` are registered: the options of
    pyiceberg's ``load_catalog``, such as ``type`` (``rest``, ``glue``, ``sql``, ``hive``) and
    ``uri``. Requires the extra ``iceberg``."""
    ack: Level | None = None
    """Acknowledgement level of writes: at ``disk`` they are on this machine's disk, at ``store`` in
    the object store. Overridden for a namespace by ``[namespaces.shop] ack``, for a table by
    ``create_table``, and for both by ``[tables."namespace/table"] ack``. Defaults to ``store`` with
    ``wal.disk = "off"``, else to ``disk``."""
    auto_create: bool = True
    """Create tables on their first write."""
    stop_deadline: Annotated[float, _seconds(0, DAY_S)] = 150.0
    """Graceful shutdown timeout; unflushed rows stay in the log. The process manager has to wait
    longer (``TimeoutStopSec``, ``terminationGracePeriodSeconds``)."""
    insecure: bool = False
    """Allow listeners that other machines reach without TLS and tokens: every caller may do
    everything."""
    flight: FlightSettings = FlightSettings()
    http: HttpSettings = HttpSettings()
    tls: TlsSettings = TlsSettings()
    auth: AuthSettings = AuthSettings()
    audit: AuditSettings = AuditSettings()
    wal: WalSettings = WalSettings()
    persist: PersistSettings = PersistSettings()
    memory: MemorySettings = msgspec.field(default_factory=MemorySettings)
    query: QuerySettings = QuerySettings()
    sql: SqlSettings = msgspec.field(default_factory=SqlSettings)
    manifest: ManifestSettings = ManifestSettings()
    publish: PublishSettings = PublishSettings()
    maintenance: MaintenanceSettings = MaintenanceSettings()
    versions: VersionsSettings = VersionsSettings()
    origins: OriginsSettings = OriginsSettings()
    replication: ReplicationSettings = ReplicationSettings()
    recovery: RecoverySettings = RecoverySettings()
    transform: TransformSettings = TransformSettings()
    quotas: QuotasSettings = QuotasSettings()
    limits: LimitsSettings = LimitsSettings()
    log: LoggingSettings = LoggingSettings()
    tracing: TracingSettings = TracingSettings()
    namespaces: dict[str, NamespaceSettings] = {}
    """Settings of single namespaces: a section ``[namespaces.shop]`` with ``ack = "store"``."""
    tables: dict[str, TableSettings] = {}
    """Settings of single tables: a section ``[tables."namespace/table"]`` with ``transformers =
    ["package.module:Class"]``, ``publish = ["iceberg"]`` or ``ack = "store"``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for namespace in self.namespaces:
            _check_namespace("namespaces", namespace)
        for key in self.tables:
            if key.count("/") != 1 or not all(key.split("/")):
                raise ConfigError("tables", f"{key!r} is not namespace/table")
        self._check_levels()
        # The id is a folder name in the store and a field of every claim.
        if not self.id or len(self.id) > 128 or not all(c.isalnum() or c in "_.-" for c in self.id):
            raise ConfigError("id", f"{self.id!r} is not 1 to 128 letters, digits, '_', '.' or '-'")
        if self.id[0] in "_.-" or not self.id.isascii():
            raise ConfigError("id", f"{self.id!r} must be ASCII and begin with a letter or a digit")

    def __repr__(self) -> str:
        """Return a text without secrets."""
        where = f"store={masked(self.store_url)!r}, data_dir={str(self.data_dir)!r}"
        return f"Settings(id={self.id!r}, {where})"

    __str__ = __repr__

    def _check_levels(self) -> None:
        """Raise :class:`ConfigError` for the level ``disk`` without a log on the disk."""
        if self.wal.disk == "on":
            return
        levels = {"ack": self.ack}
        levels |= {f'namespaces."{name}".ack': each.ack for name, each in self.namespaces.items()}
        levels |= {f'tables."{name}".ack': each.ack for name, each in self.tables.items()}
        for key, level in levels.items():
            if level == "disk":
                raise ConfigError(
                    key, "'disk' needs a log on the disk, and wal.disk is 'off': use 'store'"
                )

    @property
    def default_ack(self) -> Level:
        """The acknowledgement level where nothing else sets one."""
        return self.ack or ("store" if self.wal.disk == "off" else "disk")

    def formats_of(
        self, namespace: str, table: str, own: Sequence[str] | None = None
    ) -> tuple[str, ...]:
        """Return the formats that a table is published in.

        The nearest one that is set decides: the table's settings, ``own`` (what the table's
        manifest says), the namespace's settings, ``publish.formats``.
        """
        by_table = self.tables.get(f"{namespace}/{table}")
        by_namespace = self.publish.namespaces.get(namespace)
        for formats in (
            None if by_table is None else by_table.publish,
            own,
            None if by_namespace is None else by_namespace.formats,
        ):
            if formats is not None:
                return tuple(formats)
        return tuple(self.publish.formats)

    @property
    def store_url(self) -> str:
        """The object storage URL: ``store``, or ``file://<data_dir>/store`` with an absolute path.

        A path without a scheme is a local folder.
        """
        if not self.store:
            return f"file://{self.data_dir.absolute() / 'store'}"
        if "://" not in self.store:
            return f"file://{Path(self.store).absolute()}"
        return self.store
