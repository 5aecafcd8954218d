"""The options of the data source, checked.

    url, namespace, table      the table; or one path, <url>/<namespace>/<table>
    version | as_of            manifest version to read; the newest by default
    table_version              batch read: a retained generation of the table
    columns                    a,b,c; empty if only the number of rows matters
    count                      true: return row counts to be summed up instead of rows
    filter                     host = 'h1' and time >= '2026-11-21'; also prunes files
    store_options.<name>       as for persist.store.open_store
    tasks                      minimum number of tasks, if there are enough files
    starting_version           stream: a version's number, or latest; by default all rows
    txn_app_id, txn_version    batch write: skip the write if this version is already committed
    endpoint                   write to a keyed table: the daemon that owns it
    tls_ca, tls_cert, tls_key  the same: TLS trust and client certificate
    token_file, token          the same: the token
    persist                    the same: true waits until the rows are in files
    ack                        the same: disk or store, at least the table's level
    target_file_bytes          write: file size, as rows in memory
    max_files_per_trigger      stream: limit of one batch; or max_bytes_…, max_rows_…

An option is refused here, by its name (``tests/spark/test_refusals.py``). Spark converts option
names to lower case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ingester.spark.errors import RequestRefused
from persist.manifest import Manifest, TableNotFound, TableState, check_kept, version_as_of
from persist.store import open_store
from persist.store.option_names import EARLIER_PREFIX, PREFIX, refuse_both

if TYPE_CHECKING:
    from ingester.client.credentials import ConnectionOptions
    from ingester.client.wire import AckLevel

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
    "ack",
    *_CONNECTION,
)
_UNSUPPORTED = {
    "pushdown": "option 'pushdown' was withdrawn: Spark applies the filters of one use of a"
    " DataFrame to its other uses, which then lack rows; use the option filter, which also prunes"
    " files",
}
"""Options that get an answer of their own."""
_CATALOGUE = (
    "tables of Spark's catalogue (CREATE TABLE, saveAsTable) are not supported; use"
    " CREATE TEMP VIEW … USING ingester to read, and save(path) to write"
)
# Added by Spark, or read by Spark from the same options.
_SPARKS_OWN = ("checkpointlocation", "queryname", "outputmode", "trigger")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options of one read or write.

    Attributes:
        given: All options but ``store_options.<name>``, by lower-case name.
        settled: The table's generation, once it is known.
    """

    url: str
    namespace: str
    table: str
    store_options: dict[str, Any] = field(default_factory=dict)
    given: dict[str, str] = field(default_factory=dict)
    settled: int | None = None

    @classmethod
    def any(cls, options: Mapping[str, str]) -> SourceOptions:
        """Options of a batch or streaming read. Raises ValueError."""
        return cls._of(options, tuple(dict.fromkeys((*_READ, *_STREAM))))

    @classmethod
    def read(cls, options: Mapping[str, str]) -> SourceOptions:
        """Options of a batch read. Raises ValueError."""
        return cls._of(options, _READ)

    @classmethod
    def stream(cls, options: Mapping[str, str]) -> SourceOptions:
        """Options of a streaming read. Raises ValueError."""
        return cls._of(options, _STREAM)

    @classmethod
    def write(cls, options: Mapping[str, str]) -> SourceOptions:
        """Options of a write. Raises ValueError."""
        return cls._of(options, _WRITE)

    @classmethod
    def only_for_writes(cls, options: Mapping[str, str]) -> bool:
        """True if one of the options is for writes only."""
        return any(name.lower() in _WRITE and name.lower() not in _TABLE for name in options)

    @classmethod
    def _of(cls, options: Mapping[str, str], known: tuple[str, ...]) -> SourceOptions:
        given = {name.lower(): value for name, value in options.items()}
        if "owner" in given:  # Spark adds it to tables of its catalogue
            raise RequestRefused(_CATALOGUE)
        store_options = _store_options(given)
        rest = {
            name: value
            for name, value in given.items()
            if not name.startswith((PREFIX, EARLIER_PREFIX)) and name not in _SPARKS_OWN
        }
        for name in rest:
            if name in _UNSUPPORTED:
                raise RequestRefused(_UNSUPPORTED[name])
            if name not in known:
                raise RequestRefused(
                    f"unknown option {name!r}; known are {', '.join(known)}, {PREFIX}<name>"
                )
        url, namespace, table = _named(rest)
        return cls(url, namespace, table, store_options, rest)

    def manifest(self) -> Manifest:
        """The manifest of the requested generation, or of the current one.

        Raises:
            ValueError: ``table_version`` is not a number.
            TableVersionNotKept: The generation does not exist.
        """
        store = open_store(self.url, **self.store_options)
        if self.settled is not None:
            return Manifest(store, self.namespace, self.table, self.settled)
        asked = self.number("table_version", 1)
        if asked is not None:
            check_kept(store, self.namespace, self.table, asked)
        return Manifest(store, self.namespace, self.table, asked)

    def at(self, table_version: int) -> SourceOptions:
        """The same options, for this generation of the table."""
        return replace(self, settled=table_version)

    def existing(self) -> tuple[Manifest, int]:
        """The table's manifest and its newest version.

        Raises:
            RequestRefused: The table does not exist in the store.
        """
        manifest = self.manifest()
        try:
            return manifest, manifest.head()
        except TableNotFound as exc:
            raise RequestRefused(
                f"{exc} in the store {manifest.store.url}: check the options url, namespace and"
                " table, or the path <url>/<namespace>/<table>; a table exists after its first"
                " write to a daemon"
            ) from exc

    def version(self, manifest: Manifest) -> int:
        """The requested version.

        Raises:
            ValueError: ``version`` or ``as_of`` is invalid, or both are given.
        """
        moment = self.given.get("as_of")
        number = self.number("version")
        if moment is None:
            return manifest.head() if number is None else number
        if number is not None:
            raise RequestRefused("version and as_of: give only one of them")
        try:
            return version_as_of(manifest, datetime.fromisoformat(moment))
        except ValueError as exc:
            raise RequestRefused(f"as_of {moment!r}: {exc}") from exc

    def state(self, version: int | None = None) -> tuple[Manifest, TableState]:
        """The manifest and the requested version's state, or the given version's."""
        manifest = self.manifest()
        return manifest, manifest.load(self.version(manifest) if version is None else version)

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The requested columns; None for all."""
        text = self.given.get("columns")
        if text is None:
            return None
        return tuple(part.strip() for part in text.split(",")) if text.strip() else ()

    @property
    def filter(self) -> str | None:
        return self.given.get("filter")

    def connection(self) -> ConnectionOptions:
        """Options of the connection to the daemon. Called on the driver only.

        Raises:
            RequestRefused: An option lacks another that it needs.
        """
        # Imported here, as executors load this module and need no client.
        from ingester.client.credentials import ConnectionOptions
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
        """Whether only row counts are requested."""
        counts = self.flag("count")
        if counts and "columns" in self.given:
            raise RequestRefused(
                "option 'columns' cannot be combined with count, which returns no rows"
            )
        return counts

    @property
    def ack(self) -> AckLevel | None:
        """The level of the daemon's acknowledgement; None for the table's.

        Raises:
            RequestRefused: It is no level.
        """
        match self.given.get("ack", "").strip().lower():
            case "disk" | "store" as level:
                return level
            case "" if "ack" not in self.given:
                return None
            case text:
                raise RequestRefused(f"option ack: {text!r} must be disk or store")

    def flag(self, name: str) -> bool:
        """An option that is true or false; false by default."""
        text = self.given.get(name, "false").strip().lower()
        if text not in ("true", "false"):
            raise RequestRefused(f"option {name}: {text!r} must be true or false")
        return text == "true"

    def txn(self) -> tuple[str | None, int | None]:
        """The writer's id and its own version, or None for both."""
        app_id, version = self.given.get("txn_app_id"), self.number("txn_version")
        if (app_id is None) != (version is None):
            raise RequestRefused("options txn_app_id and txn_version must be given together")
        return app_id, version

    def number(self, name: str, least: int = 0) -> int | None:
        """An option that is a whole number; None if it is not given."""
        text = self.given.get(name)
        if text is None:
            return None
        if not text.strip().isdecimal() or int(text) < least:
            raise RequestRefused(f"option {name}: {text!r} is not a whole number >= {least}")
        return int(text)


def require_options(options: Mapping[str, str]) -> None:
    """Raise RequestRefused if there are none, as Spark keeps none for tables of its catalogue."""
    if not options:
        raise RequestRefused(
            "no table is named: give load(path) or save(path) <url>/<namespace>/<table>, or the"
            " options url, namespace and table. If this is a table of Spark's catalogue:"
            f" {_CATALOGUE}; DROP TABLE removes it from the catalogue and deletes no rows"
        )


def _named(given: Mapping[str, str]) -> tuple[str, str, str]:
    path = given.get("path")
    if path is not None:
        if other := next((name for name in _TABLE if name != "path" and name in given), None):
            raise RequestRefused(f"option {other!r} cannot be combined with a path")
        parts = path.rstrip("/").rsplit("/", 2)
        if len(parts) < 3 or not all(parts):
            raise RequestRefused(f"path {path!r} is not <url of the store>/<namespace>/<table>")
        return parts[0], parts[1], parts[2]
    for name in ("url", "namespace", "table"):
        if not given.get(name):
            raise RequestRefused(
                f"option {name!r} is missing (or a path: <url>/<namespace>/<table>)"
            )
    return given["url"], given["namespace"], given["table"]


def _store_options(given: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in given.items():
        for prefix in (PREFIX, EARLIER_PREFIX):
            if name.startswith(prefix):
                option = name.removeprefix(prefix)
                found[option] = store_value(name, value)
    for option in found:
        refuse_both(
            PREFIX + option,
            EARLIER_PREFIX + option,
            given.get(PREFIX + option),
            given.get(EARLIER_PREFIX + option),
        )
    return found


def store_value(name: str, value: str) -> Any:
    """A store option's value from text: true, false, seconds if the name ends in ``_s``, or text.

    Raises:
        ValueError: The value of a name ending in ``_s`` is not a number.
    """
    if name.endswith("_s"):
        try:
            return float(value)
        except ValueError:
            raise RequestRefused(f"option {name}: {value!r} is not a number of seconds") from None
    return {"true": True, "false": False}.get(value.lower(), value)
