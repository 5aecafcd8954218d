"""The JSON bodies of the Flight protocol, as the client sends and reads them.

Requests omit fields that were not given, because the daemon refuses unknown and empty fields.
Answers may have unknown fields from a newer daemon, which are ignored.
"""

import base64
import datetime
import decimal
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import msgspec
import pyarrow as pa

from . import arguments
from .checkpoints import CheckpointMessage
from .errors import InvalidRequest
from .filter_parser import LongNumber, parse_filter

Scope = Literal["all", "version", "buffered"]
AckLevel = Literal["disk", "store"]
"""What an acknowledged batch survives: a crash, or the loss of the machine as well."""
Missing = Literal["error", "allow"]
"""Whether an answer may lack the rows of unreachable daemons."""
TimestampUnit = Literal["us", "ns"]
Filter: TypeAlias = str | Sequence[tuple[Any, ...]] | Sequence[Sequence[tuple[Any, ...]]]
"""Text (:mod:`.filter_parser`); or terms that must all hold; or a list of lists of terms, one of
which must hold. A term is ``(column, operator, value)``, or ``(column, "is null")``.
"""


class SentMetadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """The metadata of a batch."""

    sequence: int | None = None
    checkpoint: CheckpointMessage | None = None
    traceparent: str | None = None


_NOT_SAID = -1
"""In place of a field that older daemons do not send."""


def _set_files_sequence(progress: "WriteAnswer | OriginState") -> None:
    """Set what an older daemon does not send: it has no log objects, so the durable is in files."""
    if progress.files_sequence == _NOT_SAID:
        msgspec.structs.force_setattr(progress, "files_sequence", progress.durable_sequence)


class WriteAnswer(msgspec.Struct, frozen=True):
    """The daemon's answer to one batch: it is durable at the level ``ack``, and visible.

    ``sequence`` and ``epoch`` are the daemon's own. ``memory_sequence`` is the origin's last
    sequence that survives a crash of the process. Everything up to ``durable_sequence`` is in
    object storage, in files or in the daemon's log objects; everything up to ``files_sequence`` is
    in files. All are None if unknown.
    """

    accepted: bool
    sequence: int | None = None
    epoch: int | None = None
    duplicate: bool = False
    memory_sequence: int | None = None
    durable_sequence: int | None = None
    first: bool = False
    traces: bool = False
    """Whether batches of the stream may carry their span."""
    ack: str | None = "disk"
    """The level: ``store`` if the batch is in object storage, otherwise ``disk``. None if nothing
    was made durable."""
    files_sequence: int | None = _NOT_SAID

    def __post_init__(self) -> None:
        _set_files_sequence(self)


class WriteResult(msgspec.Struct, frozen=True):
    """The acknowledged writes: counts of this writer, and the newest numbers of the daemon.

    ``ack`` is the lowest level of the acknowledgements.
    """

    rows: int = 0
    batches: int = 0
    duplicates: int = 0
    sequence: int | None = None
    epoch: int | None = None
    memory_sequence: int | None = None
    durable_sequence: int | None = None
    ack: str = "disk"
    files_sequence: int | None = None


class TableColumn(msgspec.Struct, frozen=True):
    """A column of a table; ``type`` in Arrow's notation."""

    name: str
    type: str
    nullable: bool = True


class BufferedSize(msgspec.Struct, frozen=True):
    """The size of a table's part in memory."""

    rows: int = 0
    bytes: int = 0
    partitions: int = 0


class PersistedSize(msgspec.Struct, frozen=True):
    """The size of a table's files in its current manifest version."""

    rows: int = 0
    bytes: int = 0
    files: int = 0


class DescribedTransformer(msgspec.Struct, frozen=True, kw_only=True):
    """A class that transforms a table's batches; ``previous`` is its former version, if any."""

    name: str = msgspec.field(name="class")
    version: str
    previous: str | None = None


class DescribedFormat(msgspec.Struct, frozen=True, kw_only=True):
    """A format in which the daemon publishes a table, and how far.

    Attributes:
        number: The newest published version; null if there is none yet.
        location: What an engine opens.
        versions_behind: Versions that are not published yet; null before the first attempt.
        refused: Why the table is not published until somebody changes something.
    """

    format: str
    number: int | None = None
    location: str | None = None
    versions_behind: int | None = None
    seconds_behind: float = 0.0
    refused: str | None = None


class TableOwner(msgspec.Struct, frozen=True):
    """The daemon that takes the writes of a table with a primary key, and its address."""

    ingester_id: str
    endpoint: str | None = None


class TableDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A table as the daemon describes it."""

    namespace: str
    table: str
    schema: list[TableColumn]
    primary_key: list[str] | None = None
    partition_by: list[str] | None = None
    sort_by: list[str] | None = None
    timestamp_unit: str = "us"
    transformers: list[DescribedTransformer] = []
    publish: list[str] | None = None
    max_age_s: float | None = None
    published: list[DescribedFormat] = []
    manifest_version: int | None = None
    table_version: int = 1
    buffered: BufferedSize = BufferedSize()
    persisted: PersistedSize = PersistedSize()
    owner: TableOwner | None = None
    ack: str = "disk"
    """The level of acknowledgements at the daemon."""


class TableSummary(msgspec.Struct, frozen=True):
    """A table in a listing; an unknown count is -1."""

    namespace: str
    table: str
    rows: int
    bytes: int


class Persisted(msgspec.Struct, frozen=True):
    """The manifest version of a table that has all rows acknowledged before the call.

    ``table_version`` is the table version that the manifest belongs to.
    """

    namespace: str
    table: str
    manifest_version: int | None = None
    table_version: int | None = None


class OriginState(msgspec.Struct, frozen=True):
    """The progress of an origin, as in an answer, and whether it has an open stream.

    If a table was named: everything up to ``table_sequence`` is known to be in it. ``table_newest``
    is the last sequence in it (a recreated table does not know all earlier ones).
    ``table_partly`` is the last sequence that only some of its partitions have. Between two
    ``marks`` all sequences are alike: ``there`` says whether the table has them.
    """

    origin: str
    memory_sequence: int | None = None
    durable_sequence: int | None = None
    open: bool = False
    table_sequence: int | None = None
    table_newest: int | None = None
    table_partly: int | None = None
    marks: tuple[int, ...] = ()
    there: tuple[bool, ...] = ()
    files_sequence: int | None = _NOT_SAID

    def __post_init__(self) -> None:
        _set_files_sequence(self)

    def has(self, sequence: int) -> bool:
        """Whether a sequence is in the table, as the next mark says.

        Older daemons send no marks; then only the sequences without a gap count.
        """
        if not self.there:
            return self.table_sequence is not None and sequence <= self.table_sequence
        at = bisect_left(self.marks, sequence)
        return at < len(self.there) and self.there[at]


class SnapshotInfo(msgspec.Struct, frozen=True):
    """The moment of an answer. ``snapshot_sequence`` is comparable within an epoch only.

    The answer of several daemons has the version of its files, and the moment of each part in
    ``parts``. ``missing`` are the endpoints of daemons whose rows it may lack.
    """

    ingester_id: str | None = None
    incarnation: str | None = None
    epoch: int | None = None
    snapshot_sequence: int | None = None
    manifest_version: int | None = None
    table_version: int | None = None
    taken_version: int | None = None
    """The last manifest version in which an origin moved to the daemon or from it."""
    store: str | None = None
    """The id of the daemon's store."""
    missing: tuple[str, ...] = ()
    parts: tuple["SnapshotInfo", ...] = ()


class BatchSource(msgspec.Struct, frozen=True):
    """The source of a batch, ``buffer`` or ``file``, and its partition."""

    partition: str = ""
    source: str = ""


class QueryRequest(msgspec.Struct, frozen=True):
    """A query, with its fields in the order of :meth:`Client.query`."""

    namespace: str
    table: str
    columns: Sequence[str] | None = None
    filter: Filter | None = None
    limit: int | None = None
    scope: Scope = "all"
    version: int | None = None
    table_version: int | None = None

    def ticket(self) -> bytes:
        """The DoGet ticket. ``version`` alone means ``scope="version"``.

        Raises:
            InvalidRequest: The message names the invalid argument.
        """
        arguments.one_of("scope", self.scope, get_args(Scope))
        version = arguments.integer("version", self.version, 0)
        scope = "version" if self.scope == "all" and version is not None else self.scope
        if scope == "version" and version is None:
            raise InvalidRequest("scope='version' needs a version, such as version=3")
        body = {
            "namespace": arguments.text("namespace", self.namespace),
            "table": arguments.text("table", self.table),
            "columns": arguments.names("columns", self.columns, "['host', 'v']"),
            "filter": None if self.filter is None else encode_filter(self.filter),
            "limit": arguments.integer("limit", self.limit, 0),
            "scope": None if scope == "all" else scope,
            "version": version,
            "table_version": arguments.integer("table_version", self.table_version, 1),
        }
        return encode(given(body))


def given(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def encode(body: object) -> bytes:
    """``body`` as UTF-8 JSON."""
    return _encoder.encode(body)


# The decimals in a body are the long numbers of a filter.
_encoder = msgspec.json.Encoder(decimal_format="number")


def put_command(
    kind: str,
    namespace: str,
    table: str,
    origin: str | None,
    numbers_rows: bool = False,
    ack: AckLevel | None = None,
) -> bytes:
    """The DoPut descriptor's command; ``kind`` is "write" or "delete"."""
    fields = {"type": kind, "namespace": namespace, "table": table, "origin": origin, "ack": ack}
    if numbers_rows:
        fields["numbers"] = "rows"
    return encode(given(fields))


def encode_schema(schema: pa.Schema) -> str:
    """A schema as base64 Arrow IPC, for ``create_table``."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def snapshot_info(schema: pa.Schema) -> SnapshotInfo:
    """The moment of an answer, from its schema's metadata."""
    texts = {k.decode(): v.decode() for k, v in (schema.metadata or {}).items()}
    names = [name for name in SnapshotInfo.__struct_fields__ if name not in ("missing", "parts")]
    known = {name: texts[name] for name in names if texts.get(name)}
    return msgspec.convert(known, SnapshotInfo, strict=False)


def encode_filter(filter_: Any) -> list[list[list[Any]]]:
    """A filter in the protocol's form, from text or from what pyarrow.parquet takes.

    Args:
        filter_: Text; or a list of conjunctions, each a list of ``(column, operator, value)`` or
            ``(column, "is null")``; or one such conjunction.

    Raises:
        InvalidRequest: It has another form, or a value has no JSON form.
    """
    return [[_encode_term(term) for term in terms] for terms in _alternatives(filter_)]


def check_bytes(filter_: Filter | None, schema: Callable[[], pa.Schema]) -> None:
    """Refuse bytes beside a column that is not binary: to the daemon they are base64 text.

    Args:
        schema: The table's; called if the filter has bytes.

    Raises:
        InvalidRequest: As described, or as for :func:`encode_filter`.
    """
    if filter_ is None or isinstance(filter_, str):
        return
    terms = [
        term
        for alternative in _alternatives(filter_)
        for term in alternative
        if isinstance(term, list | tuple)
    ]
    given = [term for term in terms if len(term) == 3 and _has_bytes(term[2])]
    kinds = {field.name: field.type for field in schema()} if given else {}
    for column, operator, value in given:
        kind = kinds.get(column, pa.binary())  # the daemon refuses an unknown column
        if not pa.types.is_binary(kind):
            raise InvalidRequest(
                f"filter: column {column!r} of type {kind} is not compared with bytes, as in"
                f" {(column, operator, value)!r}; give a value of the column's type"
            )


def _has_bytes(value: Any) -> bool:
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(_has_bytes, value))
    value = value.as_py() if hasattr(value, "as_py") else value
    return isinstance(value, bytes | bytearray | memoryview)


def _alternatives(filter_: Any) -> Sequence[Sequence[Any]]:
    """The alternatives of a filter, of which one must hold."""
    if isinstance(filter_, str):
        filter_ = parse_filter(filter_)
    if not isinstance(filter_, list | tuple) or not filter_:
        raise InvalidRequest(
            "filter: expected text, such as \"host = 'h1' and v > 3\", or a list of terms,"
            f" {_AS_TERMS}, got {filter_!r}"
        )
    if isinstance(filter_[0], str):
        raise InvalidRequest(f"filter: {filter_!r} is one term: put it into a list, {_AS_TERMS}")
    first = filter_[0]
    conjunctions: Sequence[Any] = [filter_] if first and isinstance(first[0], str) else filter_
    if not all(isinstance(each, list | tuple) and each for each in conjunctions):
        raise InvalidRequest(
            f"filter={filter_!r}: an empty list of terms: leave the filter out for all rows, or"
            f" name terms, {_AS_TERMS}"
        )
    return conjunctions


_AS_TERMS = "such as [('host', '=', 'h1'), ('v', '>', 3)]"


def _encode_term(term: Any) -> list[Any]:
    if not isinstance(term, list | tuple) or len(term) not in (2, 3):
        raise InvalidRequest(f"filter: {term!r} is not (column, operator, value)")
    if len(term) == 2:
        return list(term)
    column, operator, value = term
    if value is None:
        raise InvalidRequest(f"filter: {column!r} {operator} None is never true; use 'is null'")
    return [column, operator, _encode_value(value)]


def _encode_value(value: Any) -> Any:
    if hasattr(value, "as_py"):
        value = value.as_py()
    elif hasattr(value, "item") and not isinstance(value, Iterable):
        value = value.item()  # a numpy scalar
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidRequest(f"filter: {value} is not supported in a filter")
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, datetime.datetime | datetime.date):
        return value.isoformat()
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if isinstance(value, LongNumber):
        return decimal.Decimal(value)
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [_encode_value(item) for item in value]
    raise InvalidRequest(f"filter: cannot send a value of type {type(value).__name__}")
