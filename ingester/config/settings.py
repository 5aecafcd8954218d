"""The daemon's settings as frozen structs. Sizes are bytes, durations are seconds, always resolved.

This module is pure: it holds the shape, the defaults and the ranges. Where values come from (flags,
environment, file) is :mod:`ingester.config.sources`. Every struct checks itself on construction, so
a ``Settings`` that exists is a valid one. The sentence below a field is what ``docs/settings.md``
says of it (``make docs``).
"""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from ingester.memory.machine import usable_bytes

from .units import format_duration, format_size

KiB, MiB, GiB, TiB = 1024, 1024**2, 1024**3, 1024**4
DAY_S = 86400.0


class ConfigError(ValueError):
    """A setting that cannot be used. ``key`` is its dotted name; the message carries the value."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key}: {message}")
        self.key = key


Show = Callable[[Any], str]


def _check(key: str, value: float, low: float, high: float, show: Show = str) -> None:
    if not low <= value <= high:
        raise ConfigError(key, f"{show(value)} is out of range ({show(low)} to {show(high)})")


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


def _check_address(key: str, address: str) -> None:
    try:
        split_address(address)
    except ValueError as exc:
        raise ConfigError(key, str(exc)) from exc


class FlightSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The gRPC server."""

    listen: str = "127.0.0.1:8082"
    """The address of the gRPC server; port 0 picks a free one."""
    advertise: str = ""
    """The URL where clients find this daemon, as ``grpc://pod-0.ingester:8082``, if not where it
    listens."""
    max_batch_bytes: int = 64 * MiB
    """A larger batch is refused, by its size once it is decompressed."""
    max_unanswered: int = 1024
    """The server stops reading a stream beyond so many unanswered batches (or 64 MiB of them)."""

    def __post_init__(self) -> None:
        _check_address("flight.listen", self.listen)
        # gRPC carries message lengths in 31 bits
        _check("flight.max_batch_bytes", self.max_batch_bytes, KiB, 2 * GiB - MiB, format_size)
        _check("flight.max_unanswered", self.max_unanswered, 1, 1_000_000)


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Health, metrics, status and the page for an operator."""

    listen: str = "127.0.0.1:8080"
    """The address of health, metrics, status and the operator's page."""

    def __post_init__(self) -> None:
        _check_address("http.listen", self.listen)


class WalSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The log. ``fsync_interval`` counts only with ``fsync = "interval"``."""

    fsync: Literal["commit", "interval", "off"] = "commit"
    """Writes are synced before they are answered (``commit``), every so often (``interval``), or by
    the kernel (``off``)."""
    fsync_interval: float = 0.1
    """The log is synced this often with ``wal.fsync = "interval"``."""
    segment_bytes: int = 64 * MiB
    """A segment of the log is closed at this size; under load, files of up to two that are
    needed no longer are kept for the next ones."""
    segment_age: float = 300.0
    """Or a segment is closed at this age."""

    def __post_init__(self) -> None:
        _check("wal.fsync_interval", self.fsync_interval, 0.001, 60, format_duration)
        _check("wal.segment_bytes", self.segment_bytes, 4 * KiB, 4 * GiB, format_size)
        _check("wal.segment_age", self.segment_age, 0.1, 30 * DAY_S, format_duration)


class PersistSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When a partition's buffer is frozen, and how it becomes files."""

    max_age: float = 300.0
    """A partition's buffer is persisted when its oldest row is this old."""
    max_partition_bytes: int = 64 * MiB
    """Or a buffer is persisted when it is this large."""
    workers: int = 2
    """So many threads sort and encode; one partition is served in order, two of its buffers at
    a time."""
    queue_bytes: int = 512 * MiB
    """Beyond so much that waits to be persisted, writes are refused with ``saturated``."""
    target_file_bytes: int = 128 * MiB
    """A persist of more than this writes several files."""

    def __post_init__(self) -> None:
        _check("persist.max_age", self.max_age, 0.01, 30 * DAY_S, format_duration)
        _check("persist.max_partition_bytes", self.max_partition_bytes, KiB, TiB, format_size)
        _check("persist.workers", self.workers, 1, 256)
        _check("persist.queue_bytes", self.queue_bytes, KiB, TiB, format_size)
        _check("persist.target_file_bytes", self.target_file_bytes, KiB, 16 * GiB, format_size)


class MemorySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Watermarks in bytes. ``low`` and ``high`` left at 0 become 50 % and 90 % of ``limit``."""

    limit: int = msgspec.field(default_factory=lambda: usable_bytes() // 2)
    """Buffers, persists and answers under way have so many bytes; a container's limit counts as
    RAM."""
    low: int = 0
    """Above it, the daemon persists."""
    high: int = 0
    """Above it, writes are refused with ``memory``."""

    def __post_init__(self) -> None:
        _check("memory.limit", self.limit, MiB, 1024**5, format_size)
        if not self.low:
            msgspec.structs.force_setattr(self, "low", self.limit // 2)
        if not self.high:
            msgspec.structs.force_setattr(self, "high", self.limit * 9 // 10)
        _check("memory.high", self.high, 1, self.limit, format_size)
        _check("memory.low", self.low, 1, self.high, format_size)


class QuerySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of reading streams."""

    max_streams: int = 1000
    """Beyond so many answers under way, queries are refused with ``limit``."""
    client_timeout: float = 60.0
    """A client that makes no progress for so long loses its snapshot."""
    tail_retain: float = 60.0
    """The buffered tail of a replaced version is still answered for so long."""

    def __post_init__(self) -> None:
        _check("query.max_streams", self.max_streams, 1, 100_000)
        _check("query.client_timeout", self.client_timeout, 0.01, DAY_S, format_duration)
        _check("query.tail_retain", self.tail_retain, 0, DAY_S, format_duration)


class ManifestSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How often others' commits are looked for, what clean-up keeps, and who else is told."""

    refresh: float = 1.0
    """Other daemons' commits are looked for this often."""
    retain: float = DAY_S
    """Replaced versions are kept for so long."""
    orphan_grace: float = 3600.0
    """Clean-up deletes an unlisted file only when it is older than this."""
    spark_metadata: bool = False
    """A ``_spark_metadata`` is kept beside each table's files, so that ``spark.read.parquet`` of
    the folder has the committed ones only."""

    def __post_init__(self) -> None:
        _check("manifest.refresh", self.refresh, 0.01, 3600, format_duration)
        _check("manifest.retain", self.retain, 0, 3650 * DAY_S, format_duration)
        _check("manifest.orphan_grace", self.orphan_grace, 0, 365 * DAY_S, format_duration)


class OriginSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How long what an origin has written is remembered after its last write."""

    expire_after: float = 7 * DAY_S
    """What an origin has written is remembered for so long after its last write."""

    def __post_init__(self) -> None:
        _check("origins.expire_after", self.expire_after, 1, 3650 * DAY_S, format_duration)


class ReplicationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When what replication has brought is persisted, and the limits of its streams."""

    max_lag: float = 600.0
    """A buffer that a replication stream has begun is persisted when its oldest change is this
    old, in place of ``persist.max_age``."""
    max_messages: int = 100_000
    """Or such a buffer is persisted when so many messages have gone into it."""
    max_transaction_bytes: int = 256 * MiB
    """A transaction of a replication stream may have so much in memory while it is open; a
    larger one is refused whole."""

    def __post_init__(self) -> None:
        _check("replication.max_lag", self.max_lag, 0.01, 30 * DAY_S, format_duration)
        _check("replication.max_messages", self.max_messages, 1, 1 << 31)
        key = "replication.max_transaction_bytes"
        _check(key, self.max_transaction_bytes, KiB, TiB, format_size)


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What goes to standard error. ``auto`` is ``console`` on a terminal and ``json`` elsewhere."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Less important events than this are left out: ``debug``, ``info``, ``warning``, ``error``."""
    format: Literal["auto", "json", "console"] = "auto"
    """Events are written as ``json`` or for people (``console``); ``auto`` is ``console`` on a
    terminal."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
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
    stop_deadline: float = 60.0
    """A stop may take so long to finish queries and persist; the log keeps the rest."""
    flight: FlightSettings = FlightSettings()
    http: HttpSettings = HttpSettings()
    wal: WalSettings = WalSettings()
    persist: PersistSettings = PersistSettings()
    memory: MemorySettings = msgspec.field(default_factory=MemorySettings)
    query: QuerySettings = QuerySettings()
    manifest: ManifestSettings = ManifestSettings()
    origins: OriginSettings = OriginSettings()
    replication: ReplicationSettings = ReplicationSettings()
    log: LogSettings = LogSettings()

    def __post_init__(self) -> None:
        _check("stop_deadline", self.stop_deadline, 0, DAY_S, format_duration)
        # The id becomes a folder name in the store and a field of every claim.
        if not self.id or len(self.id) > 128 or not all(c.isalnum() or c in "_.-" for c in self.id):
            raise ConfigError("id", f"{self.id!r} is not 1 to 128 letters, digits, '_', '.' or '-'")
        if self.id[0] in "_.-" or not self.id.isascii():
            raise ConfigError("id", f"{self.id!r} must be ASCII and begin with a letter or a digit")

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
