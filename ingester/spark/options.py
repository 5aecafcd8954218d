"""The options of the data source, checked.

    url, namespace, table      which table; or one path, <url>/<namespace>/<table>
    version | as_of            which version of it, the newest by default
    table_version              of a batch read: a version of the table as a whole that is kept
    columns                    a,b,c; empty, where only the number of rows counts
    count                      true: the number of rows, in rows to be summed up, instead of them
    filter                     host = 'h1' and time >= '2026-11-21'; prunes files, too
    pushdown                   true: take the filters that Spark pushes down, for one query
    storage.<name>             as for persist.store.open_store
    tasks                      how many at least, where there are so many files
    starting_version           of a stream: a version's number, or latest; all rows by default
    txn_app_id, txn_version    of a batch write: a version that is committed is not written again
    endpoint                   of a write to a keyed table: the daemon that takes its writes
    tls_ca, tls_cert, tls_key  of such a write: whom to trust there, and who we are
    token_file, token          of such a write: by what to come in
    persist                    of such a write: true, to have the rows in files when it ends
    target_file_bytes          of a write: where files are cut, by their rows in memory
    max_files_per_trigger      of a stream: what one batch has at most; or max_bytes_…, max_rows_…

Law of this file: whatever an option can be refused for is refused here, by its name. Spark makes
all names lower case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ingester.spark.errors import RequestRefused
from persist.manifest import Manifest, TableNotFound, TableState, check_kept, version_as_of
from persist.store import open_store

if TYPE_CHECKING:
    from ingester.client.connection_options import ConnectionOptions

_STORAGE = "storage."
_TABLE = ("url", "path", "namespace", "table")
_READ = (
    *_TABLE,
    "table_version",
    "version",
    "as_of",
    "columns",
    "count",
    "filter",
    "tasks",
    "pushdown",
)
_STREAM = (
    *_TABLE,
    "columns",
    "filter",
    "tasks",
    "starting_version",
    "max_files_per_trigger",
    "max_bytes_per_trigger",
    "max_rows_per_trigger",
)
_CONNECTION = ("tls_ca", "tls_cert", "tls_key", "token_file", "token")
_WRITE = (
    *_TABLE,
    "txn_app_id",
    "txn_version",
    "target_file_bytes",
    "endpoint",
    "persist",
    *_CONNECTION,
)
# What Spark itself adds on the way, or takes from the same options.
_SPARKS_OWN = ("checkpointlocation", "queryname", "outputmode", "trigger")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options of one read or write.

    Attributes:
        given: The options that are not told apart here, by their lower-case names.
        settled: The version of the table that was found, for all that follows.
    """

    url: str
    namespace: str
    table: str
    storage: dict[str, Any] = field(default_factory=dict)
    given: dict[str, str] = field(default_factory=dict)
    settled: int | None = None

    @classmethod
    def any(cls, options: Mapping[str, str]) -> SourceOptions:
        """The options of a read of either kind. ``ValueError`` names what is wrong."""
        return cls._of(options, tuple(dict.fromkeys((*_READ, *_STREAM))))

    @classmethod
    def read(cls, options: Mapping[str, str]) -> SourceOptions:
        """The options of a batch read. ``ValueError`` names what is wrong."""
        return cls._of(options, _READ)

    @classmethod
    def stream(cls, options: Mapping[str, str]) -> SourceOptions:
        """The options of a streaming read. ``ValueError`` names what is wrong."""
        return cls._of(options, _STREAM)

    @classmethod
    def write(cls, options: Mapping[str, str]) -> SourceOptions:
        """The options of a write. ``ValueError`` names what is wrong."""
        return cls._of(options, _WRITE)

    @classmethod
    def only_for_writes(cls, options: Mapping[str, str]) -> bool:
        """True where there is an option that no read has."""
        return any(name.lower() in _WRITE and name.lower() not in _TABLE for name in options)

    @classmethod
    def _of(cls, options: Mapping[str, str], known: tuple[str, ...]) -> SourceOptions:
        given = {name.lower(): value for name, value in options.items()}
        storage = {
            name.removeprefix(_STORAGE): storage_value(name, value)
            for name, value in given.items()
            if name.startswith(_STORAGE)
        }
        rest = {
            name: value
            for name, value in given.items()
            if not name.startswith(_STORAGE) and name not in _SPARKS_OWN
        }
        for name in rest:
            if name not in known:
                raise RequestRefused(
                    f"option {name!r} is none of {', '.join(known)}, {_STORAGE}<name>"
                )
        url, namespace, table = _named(rest)
        return cls(url, namespace, table, storage, rest)

    def manifest(self) -> Manifest:
        """The table's manifest: of the table version that is asked for, or that counts.

        Raises:
            ValueError: ``table_version`` is no number of a version.
            TableVersionNotKept: There is no such one.
        """
        store = open_store(self.url, **self.storage)
        if self.settled is not None:
            return Manifest(store, self.namespace, self.table, self.settled)
        asked = self.number("table_version", 1)
        if asked is not None:
            check_kept(store, self.namespace, self.table, asked)
        return Manifest(store, self.namespace, self.table, asked)

    def at(self, table_version: int) -> SourceOptions:
        """The same options, of this version of the table."""
        return replace(self, settled=table_version)

    def existing(self) -> tuple[Manifest, int]:
        """The table's manifest and its newest version.

        Raises:
            RequestRefused: There is no such table in the store; the message says where it was
                looked for.
        """
        manifest = self.manifest()
        try:
            return manifest, manifest.head()
        except TableNotFound as exc:
            raise RequestRefused(
                f"{exc} in the store {manifest.store.url}: options url, namespace and table (or the"
                " path <url>/<namespace>/<table>) say which is meant; a table is there from its"
                " first write to a daemon on"
            ) from exc

    def version(self, manifest: Manifest) -> int:
        """The version that is asked for.

        Raises:
            ValueError: ``version`` or ``as_of`` cannot be understood, or both are there.
        """
        moment = self.given.get("as_of")
        number = self.number("version")
        if moment is None:
            return manifest.head() if number is None else number
        if number is not None:
            raise RequestRefused("version and as_of: one of them says what to read")
        try:
            return version_as_of(manifest, datetime.fromisoformat(moment))
        except ValueError as exc:
            raise RequestRefused(f"as_of {moment!r}: {exc}") from exc

    def state(self, version: int | None = None) -> tuple[Manifest, TableState]:
        """The manifest and the version that is asked for, or this one."""
        manifest = self.manifest()
        return manifest, manifest.load(self.version(manifest) if version is None else version)

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns that are asked for; None for all."""
        text = self.given.get("columns")
        if text is None:
            return None
        return tuple(part.strip() for part in text.split(",")) if text.strip() else ()

    @property
    def filter(self) -> str | None:
        """The filter of the wanted rows; None for all."""
        return self.given.get("filter")

    def connection(self) -> ConnectionOptions:
        """The options of the connection to the daemon. On the driver: executors have none.

        Raises:
            RequestRefused: One without the other that it needs.
        """
        # Not on top: executors load this module, and have nothing to do with a daemon.
        from ingester.client.connection_options import ConnectionOptions
        from ingester.client.errors import InvalidRequest

        found: dict[str, Any] = {
            name: self.given[name] for name in _CONNECTION if name in self.given
        }
        try:
            return ConnectionOptions(**found)
        except InvalidRequest as exc:
            raise RequestRefused(f"option {exc}") from exc

    @property
    def counts(self) -> bool:
        """True where only the number of rows is wanted."""
        counts = self.flag("count")
        for other in ("columns", "pushdown") if counts else ():
            if other in self.given:
                raise RequestRefused(
                    f"option {other!r} beside count, which gives no rows of the table"
                )
        return counts

    def flag(self, name: str) -> bool:
        """An option that is true or false, false where it is not there."""
        text = self.given.get(name, "false").strip().lower()
        if text not in ("true", "false"):
            raise RequestRefused(f"option {name}: {text!r} is neither true nor false")
        return text == "true"

    def txn(self) -> tuple[str | None, int | None]:
        """The writer's name and its own version, or neither."""
        app_id, version = self.given.get("txn_app_id"), self.number("txn_version")
        if (app_id is None) != (version is None):
            raise RequestRefused("options txn_app_id and txn_version: both, or neither")
        return app_id, version

    def number(self, name: str, least: int = 0) -> int | None:
        """An option that is a whole number, None where it is not there."""
        text = self.given.get(name)
        if text is None:
            return None
        if not text.strip().isdecimal() or int(text) < least:
            raise RequestRefused(f"option {name}: {text!r} is no whole number of at least {least}")
        return int(text)


def _named(given: Mapping[str, str]) -> tuple[str, str, str]:
    path = given.get("path")
    if path is not None:
        if other := next((name for name in _TABLE if name != "path" and name in given), None):
            raise RequestRefused(f"option {other!r} beside a path, which names the whole table")
        parts = path.rstrip("/").rsplit("/", 2)
        if len(parts) < 3 or not all(parts):
            raise RequestRefused(f"path {path!r} is not <store's url>/<namespace>/<table>")
        return parts[0], parts[1], parts[2]
    for name in ("url", "namespace", "table"):
        if not given.get(name):
            raise RequestRefused(
                f"option {name!r} is missing (or a path: <url>/<namespace>/<table>)"
            )
    return given["url"], given["namespace"], given["table"]


def storage_value(name: str, value: str) -> Any:
    """Options are texts; storage options know true and false, and seconds, too.

    Raises:
        ValueError: It ends with ``_s`` and is no number.
    """
    if name.endswith("_s"):
        try:
            return float(value)
        except ValueError:
            raise RequestRefused(f"option {name}: {value!r} is no number of seconds") from None
    return {"true": True, "false": False}.get(value.lower(), value)
