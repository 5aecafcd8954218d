"""The daemon's settings as frozen structs. Sizes are bytes, durations are seconds, always resolved.

This module is pure: it holds the shape, the defaults and the ranges. Where values come from (flags,
environment, file) is :mod:`ingester.config.sources`. What a field may be stands in its type, and
every struct checks itself on construction, so a ``Settings`` that exists is a valid one. The
sentence below a field is what ``docs/settings.md`` says of it (``make docs``).
"""

import math
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from ingester.memory.machine import usable_bytes
from ingester.secret_texts import masked

from .units import format_duration, format_size, parse_duration, parse_percent, parse_size

KiB, MiB, GiB, TiB = 1024, 1024**2, 1024**3, 1024**4
DAY_S = 86400.0


class ConfigError(ValueError):
    """A setting that cannot be used. ``key`` is its dotted name; the message carries the value."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key}: {message}")
        self.key = key


class Range(NamedTuple):
    """The least and the greatest value of a setting, and how people write it."""

    low: float
    high: float
    show: Callable[[Any], str] = str
    parse: Callable[[object], float] | None = None
    """Reads what :attr:`show` writes; None where a number is written as such."""

    def check(self, key: str, value: float) -> None:
        """Raise :class:`ConfigError` for a value that is out of range."""
        if not self.low <= value <= self.high:
            low, high = self.show(self.low), self.show(self.high)
            raise ConfigError(key, f"{self.show(value)} is out of range ({low} to {high})")


def _bytes(low: float, high: float) -> Range:
    return Range(low, high, format_size, parse_size)


def _seconds(low: float, high: float) -> Range:
    return Range(low, high, format_duration, parse_duration)


def range_of(kind: object) -> Range | None:
    """The range in a field's type, where it has one."""
    found = (each for each in getattr(kind, "__metadata__", ()) if isinstance(each, Range))
    return next(found, None)


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT`` (``[::1]:8080`` for IPv6). Port 0 asks for a free one.

    Raises:
        ValueError: no port, or one outside 0..65535.
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
    """The type of a setting that is ``HOST:PORT``."""

    def check(self, key: str, value: str) -> None:
        """Raise :class:`ConfigError` for what :func:`split_address` refuses."""
        try:
            split_address(value)
        except ValueError as exc:
            raise ConfigError(key, str(exc)) from exc


class _Section(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that check each of their fields by its type."""

    def __post_init__(self) -> None:
        section = type(self).__name__.removesuffix("Settings").lower()
        for field in msgspec.structs.fields(self):
            for each in getattr(field.type, "__metadata__", ()):
                key = f"{section}.{field.name}" if section else field.name
                each.check(key, getattr(self, field.name))


class FlightSettings(_Section, frozen=True, kw_only=True):
    """The gRPC server."""

    listen: Annotated[str, _Address()] = "127.0.0.1:8082"
    """The address of the gRPC server; port 0 picks a free one."""
    advertise: str = ""
    """The URL where clients find this daemon, as ``grpc://pod-0.ingester:8082``, if not where it
    listens."""
    # gRPC carries message lengths in 31 bits.
    max_batch_bytes: Annotated[int, _bytes(KiB, 2 * GiB - MiB)] = 64 * MiB
    """A larger batch is refused, by its size once it is decompressed."""
    max_unanswered: Annotated[int, Range(1, 1_000_000)] = 1024
    """The server stops reading a stream beyond so many unanswered batches (or 64 MiB of them)."""


class HttpSettings(_Section, frozen=True, kw_only=True):
    """Health, metrics, status and the page for an operator."""

    listen: Annotated[str, _Address()] = "127.0.0.1:8080"
    """The address of health, metrics, status and the operator's page."""
    hosts: list[str] = []
    """The names, beside its own and the loopback's, by which browsers and scrapers may ask, as
    ``["ingester.example.org", ".ingester.svc"]`` (a dot in front: all names below); others are
    answered 421, since a page of another site could have had its name lead here. Addresses and
    ``/health`` are always answered."""
    idle_timeout: Annotated[float, _seconds(0.1, DAY_S)] = 15.0
    """A connection to the HTTP port that has not sent a whole request for so long is closed."""


class AuthSettings(_Section, frozen=True, kw_only=True):
    """Who may do what. Without ``tokens`` and ``jwks`` everybody may do everything."""

    tokens: str = ""
    """The file of tokens, which ``ingester tokens`` makes; it is read again when it changes. With
    it, or ``auth.jwks``, whoever has no token is refused."""
    jwks: str = ""
    """The keys of an OpenID Connect provider whose tokens (JWT) are taken: a file, or an
    ``https://`` URL. It needs ``auth.issuer`` and ``auth.audience``."""
    issuer: str = ""
    """The ``iss`` that a JWT must have."""
    audience: str = ""
    """The ``aud`` that a JWT must have."""
    namespace_claim: str = "ingester"
    """The claim of a JWT that has its grants: a list as ``["shop:read,write", "*:read"]``."""
    open: list[str] = []
    """What is answered without a token beside ``/health`` and the page: ``metrics``,
    ``status``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.jwks and not (self.issuer and self.audience):
            missing = "issuer" if not self.issuer else "audience"
            raise ConfigError(
                f"auth.{missing}", "auth.jwks needs it: a JWT made for somebody else would be taken"
            )
        for name in self.open:
            if name not in ("metrics", "status"):
                raise ConfigError("auth.open", f"{name!r} is not metrics or status")

    @property
    def enabled(self) -> bool:
        """Whether callers must show a token."""
        return bool(self.tokens or self.jwks)


class AuditSettings(_Section, frozen=True, kw_only=True):
    """The audit log."""

    file: str = ""
    """The file of the audit log, one JSON object a line, of administrative actions and refusals;
    ``-`` is standard error. It is opened again at SIGHUP."""


class LimitsSettings(_Section, frozen=True, kw_only=True):
    """How much of each thing there may be."""

    http_connections: Annotated[int, Range(4, 100_000)] = 256
    """So many connections to the HTTP port are open at a time, or an eighth of the descriptors;
    for a further one the connection that has done nothing for longest is closed."""
    columns: Annotated[int, Range(1, 10_000)] = 2_000
    """A table takes no further columns beyond so many; one that has more keeps them."""
    dictionaries: Annotated[int, Range(0, 10_000)] = 1_000
    """A stream's schema has so many dictionaries at most, nested ones included."""
    nesting: Annotated[int, Range(1, 32)] = 32
    """A sent type is nested so many levels deep at most."""
    name_bytes: Annotated[int, Range(1, 255)] = 255
    """The name of a new column, of a field inside one or of an origin has so many bytes at most."""
    metadata_bytes: Annotated[int, _bytes(KiB, 16 * MiB)] = MiB
    """A schema has so much metadata at most, with that of its fields; a batch so much beside the
    states of its checkpoint."""
    partitions: Annotated[int, Range(1, 10_000_000)] = 10_000
    """Beyond so many partitions of a table with rows in buffers, a batch for a further one is
    refused with ``limit``, and the table's buffers are persisted."""
    daemon_partitions: Annotated[int, Range(1, 10_000_000)] = 100_000
    """The same over all tables of the daemon."""
    tables: Annotated[int, Range(1, 1_000_000)] = 10_000
    """No further table is made beyond so many that the daemon has open."""
    namespaces: Annotated[int, Range(1, 1_000_000)] = 1_000
    """No table of a further namespace is made beyond so many that the daemon has tables open of."""
    origins: Annotated[int, Range(1, 10_000_000)] = 100_000
    """Beyond so many remembered origins, a further one is refused with ``limit``."""
    checkpoints: Annotated[int, Range(1, 1_000_000)] = 10_000
    """A table keeps the states of so many partitions of sources at most."""
    transactions: Annotated[int, Range(1, 1_000_000)] = 1_000
    """Beyond so many open transactions, a further one is refused with ``limit``."""


class TlsSettings(_Section, frozen=True, kw_only=True):
    """TLS of both listeners, gRPC and HTTP. Files that are replaced are taken up as they are."""

    cert: str = ""
    """The path of the daemon's certificate (PEM), with those between it and its authority behind
    it; both listeners speak TLS (1.2 at least) alone where it is set."""
    key: str = ""
    """The path of the certificate's key (PEM, without a passphrase)."""
    client_ca: str = ""
    """The path of the authorities (PEM) that sign clients' certificates: others are not let in
    (mutual TLS). HTTP asks for one, too, for all but its health routes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.cert) != bool(self.key):
            missing, there = ("key", "cert") if self.cert else ("cert", "key")
            raise ConfigError(f"tls.{missing}", f"is not set, and tls.{there} is: set both")
        if self.client_ca and not self.cert:
            raise ConfigError("tls.client_ca", "needs tls.cert and tls.key")


class WalSettings(_Section, frozen=True, kw_only=True):
    """The log. ``fsync_interval`` counts only with ``fsync = "interval"``."""

    fsync: Literal["commit", "interval", "off"] = "commit"
    """Writes are synced before they are answered (``commit``), every so often (``interval``), or by
    the kernel (``off``)."""
    fsync_interval: Annotated[float, _seconds(0.001, 60)] = 0.1
    """The log is synced this often with ``wal.fsync = "interval"``."""
    segment_bytes: Annotated[int, _bytes(4 * KiB, 4 * GiB)] = 64 * MiB
    """A segment of the log is closed at this size; under load, files of up to two that are
    needed no longer are kept for the next ones."""
    segment_age: Annotated[float, _seconds(0.1, 30 * DAY_S)] = 300.0
    """Or a segment is closed at this age."""


class PersistSettings(_Section, frozen=True, kw_only=True):
    """The limits at which a partition's buffer is frozen, and how it becomes files."""

    max_age: Annotated[float, _seconds(0.01, 30 * DAY_S)] = 300.0
    """A partition's buffer is persisted when its oldest row is this old."""
    max_partition_bytes: Annotated[int, _bytes(KiB, TiB)] = 64 * MiB
    """Or a buffer is persisted when it is this large."""
    workers: Annotated[int, Range(1, 256)] = 2
    """So many threads sort and encode; one partition is served in order, two of its buffers at
    a time."""
    queue_bytes: Annotated[int, _bytes(KiB, TiB)] = 512 * MiB
    """Beyond so much that waits to be persisted, writes are refused with ``saturated``."""
    target_file_bytes: Annotated[int, _bytes(KiB, 16 * GiB)] = 128 * MiB
    """A persist of more than this writes several files."""


# Their ranges depend on the limit: see MemorySettings.
_WATERMARK = _bytes(-math.inf, math.inf)


class MemorySettings(_Section, frozen=True, kw_only=True):
    """Watermarks in bytes. ``low`` and ``high`` left at 0 become 50 % and 90 % of ``limit``."""

    limit: Annotated[int, _bytes(MiB, 1024**5)] = msgspec.field(
        default_factory=lambda: usable_bytes() // 2
    )
    """Buffers, persists and answers under way have so many bytes; a container's limit counts as
    RAM."""
    low: Annotated[int, _WATERMARK] = 0
    """Above it, the daemon persists."""
    high: Annotated[int, _WATERMARK] = 0
    """Above it, writes are refused with ``memory``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.low:
            msgspec.structs.force_setattr(self, "low", self.limit // 2)
        if not self.high:
            msgspec.structs.force_setattr(self, "high", self.limit * 9 // 10)
        _bytes(1, self.limit).check("memory.high", self.high)
        _bytes(1, self.high).check("memory.low", self.low)


class QuerySettings(_Section, frozen=True, kw_only=True):
    """Limits of reading streams."""

    max_streams: Annotated[int, Range(1, 100_000)] = 1000
    """Beyond so many answers under way, queries are refused with ``limit``."""
    max_followers: Annotated[int, Range(1, 100_000)] = 1000
    """Beyond so many calls of scope ``live``, which wait or are answered, further ones are refused
    with ``limit``; they take no place of ``max_streams``."""
    client_timeout: Annotated[float, _seconds(0.01, DAY_S)] = 60.0
    """A client that makes no progress for so long loses its snapshot."""
    tail_retain: Annotated[float, _seconds(0, DAY_S)] = 60.0
    """The buffered tail of a replaced version is still answered for so long, and a follower finds
    what was persisted so long ago."""
    max_filter_terms: Annotated[int, Range(1, 10_000_000)] = 100_000
    """A query whose filter has more comparisons, each value of a list counted, is refused with
    ``invalid``."""
    max_filter_bytes: Annotated[int, _bytes(KiB, GiB)] = 8 * MiB
    """A query whose ticket is larger, with its filter, is refused with ``invalid``."""
    max_cpu: Annotated[float, _seconds(0.01, DAY_S)] = 60.0
    """A query that has computed for so long, which waiting does not count for, ends with
    ``timeout``, in the middle of its answer if need be."""


class ManifestSettings(_Section, frozen=True, kw_only=True):
    """How often others' commits are looked for, what clean-up keeps, and who else is told."""

    refresh: Annotated[float, _seconds(0.01, 3600)] = 1.0
    """Other daemons' commits are looked for this often."""
    retain: Annotated[float, _seconds(0, 3650 * DAY_S)] = DAY_S
    """Replaced versions are kept for so long."""
    orphan_grace: Annotated[float, _seconds(0, 365 * DAY_S)] = 3600.0
    """Clean-up deletes an unlisted file only when it is older than this."""
    spark_metadata: bool = False
    """A ``_spark_metadata`` is kept beside each table's files, so that ``spark.read.parquet`` of
    the folder has the committed ones only."""


class VersionsSettings(_Section, frozen=True, kw_only=True):
    """What is kept of a table's versions as a whole, as pushes make them."""

    keep: Annotated[int, Range(0, 1000)] = 2
    """So many versions of a table stay that counted before the present one, and as many to go back
    to where some were rolled back; older ones go ``manifest.orphan_grace`` after they are found."""


class OriginsSettings(_Section, frozen=True, kw_only=True):
    """How long what an origin has written is remembered after its last write."""

    expire_after: Annotated[float, _seconds(1, 3650 * DAY_S)] = 7 * DAY_S
    """What an origin has written is remembered for so long after its last write."""


class ReplicationSettings(_Section, frozen=True, kw_only=True):
    """The limits at which what replication has brought is persisted, and those of its streams."""

    max_lag: Annotated[float, _seconds(0.01, 30 * DAY_S)] = 600.0
    """A buffer that a replication stream has begun is persisted when its oldest change is this
    old, in place of ``persist.max_age``."""
    max_messages: Annotated[int, Range(1, 1 << 31)] = 100_000
    """Or such a buffer is persisted when so many messages have gone into it."""
    max_transaction_bytes: Annotated[int, _bytes(KiB, TiB)] = 256 * MiB
    """A transaction of a replication stream may have so much in memory while it is open; a
    larger one is refused whole."""


class RecoverySettings(_Section, frozen=True, kw_only=True):
    """What a start does where it does not find what it left, and which logs of others it adopts."""

    accept_lost_log: bool = False
    """A start goes on although the last epoch under this ``id`` has not stopped cleanly and its log
    is not in ``data_dir``: the log is lost for good, or has been adopted. For one start alone, as
    ``--accept-lost-log``."""
    accept_other_store: bool = False
    """A start goes on although the store is not the one that ``data_dir`` belongs to, or has been
    emptied, or was restored from an older state. For one start alone, as
    ``--accept-other-store``."""
    adopt: list[str] = []
    """Data directories that the daemon looks after: where no daemon holds one, what its log has and
    no file goes into the tables. ``*`` in the last part names all folders that fit."""
    adopt_after: Annotated[float, _seconds(0, DAY_S)] = 60.0
    """A data directory is adopted that has been without its daemon for so long."""


class TransformSettings(_Section, frozen=True, kw_only=True):
    """How transformers run, and which of them a ``create_table`` may name."""

    allowed: list[str] = []
    """The modules whose classes a ``create_table``, or a table's manifest, may name as
    transformers: names or patterns, as ``["acme.rules", "acme.lib.*"]``; none by default."""
    timeout: Annotated[float, _seconds(0.01, 3600)] = 10.0
    """A batch that a transformer takes longer for is refused with ``timeout``."""
    threads: Annotated[int, Range(1, 256)] = 4
    """So many transformers run at a time, and one fewer of one class."""


class NamespaceQuota(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The quotas of one namespace that differ from those of ``[quotas]``; 0 is none."""

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
    """What one namespace may take of the daemon; 0 is no quota, and fair shares alone."""

    buffer_bytes: Annotated[int, _bytes(0, TiB)] = 0
    """A namespace may have so much in buffers and on its way there; beyond it, its writes are
    refused with ``memory``, and what it has is persisted. 0 is no quota, as in all of these."""
    bytes_per_s: Annotated[int, _bytes(0, TiB)] = 0
    """A namespace may write so much in a second, as a mean; its writes are refused with ``limit``
    while it is ahead of that. A batch of any size passes, and is made up for before the next."""
    requests_per_s: Annotated[int, Range(0, 1_000_000_000)] = 0
    """A namespace may have so many batches, queries and actions in a second, as a mean; beyond it,
    they are refused with ``limit``."""
    tables: Annotated[int, Range(0, 1_000_000_000)] = 0
    """A namespace may have so many tables; further ones are not made, and refused with
    ``limit``."""
    partitions: Annotated[int, Range(0, 1_000_000_000)] = 0
    """A namespace may have so many partitions with a buffer; a batch that needs more is refused
    with ``limit``."""
    streams: Annotated[int, Range(0, 1_000_000)] = 0
    """A namespace may have so many streams of writers at a time, so many queries, and so many calls
    of followers; further ones are refused with ``limit``."""
    namespaces: dict[str, NamespaceQuota] = {}
    """The quotas of single namespaces, where they differ: ``[quotas."acme"]`` in the file, with
    ``bytes_per_s = "10MiB"`` and the like below it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for namespace in self.namespaces:
            if not namespace or "/" in namespace:
                raise ConfigError("quotas", f"{namespace!r} is no namespace")

    def quota(self, namespace: str, name: str) -> tuple[int, str]:
        """The quota of this name that a namespace has, and the setting that says so."""
        own = self.namespaces.get(namespace)
        value = None if own is None else getattr(own, name)
        if value is None:
            return getattr(self, name), f"quotas.{name}"
        return value, f'quotas."{namespace}".{name}'


TRANSFORMER_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
"""The name of a class as settings and requests have it: ``package.module:Class``."""


class TableSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one table."""

    transformers: list[str] | None = None
    """The classes that its batches go through, in order; none of them with an empty list. They
    win over those of ``create_table``."""

    def __post_init__(self) -> None:
        for name in self.transformers or ():
            if not TRANSFORMER_NAME.fullmatch(name):
                raise ValueError(f"transformer {name!r} is not package.module:Class")
        if len(set(self.transformers or ())) < len(self.transformers or ()):
            raise ValueError(f"transformers {self.transformers} names a class twice")


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What goes to standard error. ``auto`` is ``console`` on a terminal and ``json`` elsewhere."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Less important events than this are left out: ``debug``, ``info``, ``warning``, ``error``."""
    format: Literal["auto", "json", "console"] = "auto"
    """Events are written as ``json`` or for people (``console``); ``auto`` is ``console`` on a
    terminal."""


def _share(value: object) -> float:
    """Read a share: a number from 0 to 1, or a percentage."""
    text = str(value)
    percent = parse_percent(text)
    return float(text) if percent is None else percent


class _HttpUrl:
    """The type of a setting that is the URL of a server, or empty."""

    def check(self, key: str, value: str) -> None:
        """Raise :class:`ConfigError` for what is no ``http://HOST:PORT``."""
        if value and not re.fullmatch(r"https?://[^\s/]+(/\S*)?", value):
            raise ConfigError(key, f"{value!r} is not a URL; write it as http://127.0.0.1:4317")


class TracingSettings(_Section, frozen=True, kw_only=True):
    """Spans for OpenTelemetry, which the extra ``otel`` sends. ``OTEL_*`` variables win."""

    endpoint: Annotated[str, _HttpUrl()] = ""
    """The receiver of OTLP, as ``http://127.0.0.1:4317``; empty: nothing is traced, unless
    ``OTEL_EXPORTER_OTLP_ENDPOINT`` or ``OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`` names one."""
    protocol: Literal["grpc", "http"] = "grpc"
    """OTLP over ``grpc`` (usually port 4317) or over ``http`` with protobuf (usually port 4318)."""
    sample: Annotated[float, Range(0, 1, "{:g}".format, _share)] = 0.01
    """The share of batches, queries, other calls and flushes that are traced where no caller has
    decided: ``0.01`` or ``1%``. A caller's ``traceparent`` decides for what it asks."""
    max_asked_per_s: Annotated[int, Range(0, 1_000_000)] = 100
    """The most batches and calls in a second that are traced because callers ask for it; beyond,
    ``tracing.sample`` decides."""
    queue_spans: Annotated[int, Range(64, 1_000_000)] = 8192
    """The spans that wait for a receiver that is away or slow; more are dropped and counted."""


class Settings(_Section, frozen=True, kw_only=True):
    """Everything the daemon may be told. ``Settings()`` is complete: it runs on its defaults.

    ``store`` empty means ``file://<data_dir>/store``; read :attr:`store_url`. ``store_options`` are
    passed to fsspec (for example ``endpoint_url``).
    """

    id: str = msgspec.field(default_factory=socket.gethostname)
    """The stable name of this ingester: a second daemon under the same name fences the first."""
    data_dir: Path = Path("ingester-data")
    """The folder of log, spill and lock; it belongs on a local disk."""
    store: str = ""
    """The object storage URL: ``file://``, ``s3://``, any fsspec URL that can create
    conditionally."""
    store_options: dict[str, Any] = {}
    """Options that are passed to fsspec, as ``endpoint_url`` for S3."""
    auto_create: bool = True
    """Tables are made by their first write."""
    stop_deadline: Annotated[float, _seconds(0, DAY_S)] = 150.0
    """A stop may take so long to finish queries and persist; the log keeps the rest. Whoever ends
    the process has to wait for longer (``TimeoutStopSec``, ``terminationGracePeriodSeconds``)."""
    insecure: bool = False
    """Listen beyond the loopback without TLS and tokens: whoever reaches a port may do all."""
    flight: FlightSettings = FlightSettings()
    http: HttpSettings = HttpSettings()
    tls: TlsSettings = TlsSettings()
    auth: AuthSettings = AuthSettings()
    audit: AuditSettings = AuditSettings()
    wal: WalSettings = WalSettings()
    persist: PersistSettings = PersistSettings()
    memory: MemorySettings = msgspec.field(default_factory=MemorySettings)
    query: QuerySettings = QuerySettings()
    manifest: ManifestSettings = ManifestSettings()
    versions: VersionsSettings = VersionsSettings()
    origins: OriginsSettings = OriginsSettings()
    replication: ReplicationSettings = ReplicationSettings()
    recovery: RecoverySettings = RecoverySettings()
    transform: TransformSettings = TransformSettings()
    quotas: QuotasSettings = QuotasSettings()
    limits: LimitsSettings = LimitsSettings()
    log: LogSettings = LogSettings()
    tracing: TracingSettings = TracingSettings()
    tables: dict[str, TableSettings] = {}
    """What is so for one table alone: ``[tables."namespace/table"]`` in the file, with the classes
    that its batches go through as ``transformers = ["package.module:Class"]``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in self.tables:
            if key.count("/") != 1 or not all(key.split("/")):
                raise ConfigError("tables", f"{key!r} is not namespace/table")
        # The id becomes a folder name in the store and a field of every claim.
        if not self.id or len(self.id) > 128 or not all(c.isalnum() or c in "_.-" for c in self.id):
            raise ConfigError("id", f"{self.id!r} is not 1 to 128 letters, digits, '_', '.' or '-'")
        if self.id[0] in "_.-" or not self.id.isascii():
            raise ConfigError("id", f"{self.id!r} must be ASCII and begin with a letter or a digit")

    def __repr__(self) -> str:
        """Names what they are of, and nothing that may be secret."""
        where = f"store={masked(self.store_url)!r}, data_dir={str(self.data_dir)!r}"
        return f"Settings(id={self.id!r}, {where})"

    __str__ = __repr__

    @property
    def store_url(self) -> str:
        """The object storage URL: ``store``, or ``file://<data_dir>/store`` with an absolute path.

        A bare path counts as a local folder.
        """
        if not self.store:
            return f"file://{self.data_dir.absolute() / 'store'}"
        if "://" not in self.store:
            return f"file://{Path(self.store).absolute()}"
        return self.store
