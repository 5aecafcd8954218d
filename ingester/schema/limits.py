"""Limits on a schema: fields, depth, names, metadata; on a table's columns; and the valid names.

    a sent schema ──▶ ``check_sent``, only its number of columns ──▶ ``check_schema``
    a table that would grow ──▶ ``check_columns``, ``check_column_names``, ``check_shown_columns``
    a namespace or table ──▶ ``check_table_name``

Pure, and linear in the fields, of which no more are examined than allowed. A refusal names the
setting, its value and what was found. A sent schema is checked in the thread that reads it,
before anything else. Replay does not check: what was accepted once stays.

A field costs about a kilobyte in every plan, footer and answer. Fields inside dictionaries and
extension types count as well. A valid name is safe as a folder name, as a Spark column, in a log
line and in a terminal. Columns that predate the rule on hidden characters keep their names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from ingester.errors import BadRequest, limit_facts
from ingester.shown_text import has_hidden, shown_name

MAX_FIELDS = 10_000
"""Limit on the fields of a schema, including nested ones."""


_MAY_HAVE_NONE = {pa.lib.Type_NA, pa.lib.Type_DICTIONARY, pa.uuid().id}
"""Types stored as another type, which may be null."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeLimits:
    """The ``[limits]`` for schemas; the defaults are the largest values."""

    columns: int = MAX_FIELDS
    dictionaries: int = MAX_FIELDS
    nesting: int = 32
    name_bytes: int = 255
    metadata_bytes: int = 16 << 20


LARGEST = ShapeLimits()
"""Limits that no setting exceeds: for columns that a table has, or that were checked before."""


class _Walk:
    """Counts the parts of a schema and stops at the first limit."""

    def __init__(self, what: str, columns: int, limits: ShapeLimits) -> None:
        self._what = what
        self._columns = columns
        self._limits = limits
        self._fields = self._dictionaries = self.metadata_bytes = 0

    def field(self, field: pa.Field, depth: int, column: str | None) -> None:
        """Count a field; ``column`` is the column that contains it, or None for a column itself."""
        self._fields += 1
        if self._fields > MAX_FIELDS:
            raise BadRequest(
                f"{self._what} has more than {MAX_FIELDS} fields, nested ones included"
                f" ({self._columns} columns)"
            )
        name = field.name
        self._check_name(name, column)
        if field.metadata:
            self.metadata_bytes += _bytes_of(field.metadata)
        self.kind(field.type, depth, name if column is None else column)

    def kind(self, kind: pa.DataType, depth: int, column: str) -> None:
        """Count the inner fields of a type."""
        while isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        if pa.types.is_dictionary(kind):
            self._dictionaries += 1
            if self._dictionaries > self._limits.dictionaries:
                raise self._over("dictionaries", self._dictionaries, "dictionaries")
            self._deeper(kind.value_type, depth, column)
            return
        for index in range(kind.num_fields):
            inner = kind.field(index)
            self._check_depth(depth + 1, column)
            self.field(inner, depth + 1, column)

    def _deeper(self, kind: pa.DataType, depth: int, column: str) -> None:
        self._check_depth(depth + 1, column)
        self.kind(kind, depth + 1, column)

    def _check_depth(self, depth: int, column: str) -> None:
        most = self._limits.nesting
        if depth > most:
            raise BadRequest(
                f"column {shown_name(column)}: nested more than {most} levels deep; limits.nesting"
                f" is {most}",
                details=limit_facts("limits.nesting", most, depth),
            )

    def _check_name(self, name: str, column: str | None) -> None:
        most = self._limits.name_bytes
        # A character has at most four bytes, so most names need no encoding.
        if len(name) * 4 <= most:
            return
        nbytes = len(name.encode(errors="surrogatepass"))
        if nbytes > most:
            inside = "" if column is None else f"column {shown_name(column)}: field "
            raise BadRequest(
                f"{inside or 'column '}{shown_name(name)}: a name has 1 to {most} bytes, this one"
                f" {nbytes}; limits.name_bytes is {most}",
                details=limit_facts("limits.name_bytes", most, nbytes),
            )

    def _over(self, limit: str, found: int, counted: str) -> BadRequest:
        most = getattr(self._limits, limit)
        return BadRequest(
            f"{self._what} has more than {most} {counted}, nested ones included;"
            f" limits.{limit} is {most}",
            details=limit_facts(f"limits.{limit}", most, found),
        )


def check_schema(what: str, schema: pa.Schema, limits: ShapeLimits) -> None:
    """Raise :class:`BadRequest` for a schema beyond a limit.

    Args:
        what: the schema's name in errors, for example "the stream's schema".
    """
    most = limits.metadata_bytes
    _check_metadata(what, _metadata_bound(schema, most), most)
    walk = _Walk(what, len(schema), limits)
    try:
        if schema.metadata:
            walk.metadata_bytes += _bytes_of(schema.metadata)
        for field in schema:
            walk.field(field, 0, None)
    except UnicodeDecodeError as exc:
        raise BadRequest(f"the schema has a name that is not UTF-8: {exc.reason}") from exc
    _check_metadata(what, walk.metadata_bytes, most)


def _metadata_bound(schema: pa.Schema, most: int) -> int:
    """Return the size of a schema's metadata if it is far beyond ``most``, otherwise 0.

    Arrow copies metadata while holding the GIL, which blocks every other thread.
    """
    nbytes = schema.serialize().size
    if nbytes <= 2 * most:
        return 0
    bare = pa.schema([field.remove_metadata() for field in schema])
    found = int(nbytes - bare.serialize().size)
    return found if found > 2 * most else 0


def _check_metadata(what: str, found: int, most: int) -> None:
    if found > most:
        raise BadRequest(
            f"{what} has {found} B of metadata; limits.metadata_bytes is {most}, and"
            " tables keep none of it",
            details=limit_facts("limits.metadata_bytes", most, found),
        )


def check_columns(key: tuple[str, str], had: int, columns: int, limits: ShapeLimits) -> None:
    """Raise :class:`BadRequest` if a table would have too many columns.

    Args:
        had: the table's columns now, 0 for a new table.
        columns: the columns it would have.
    """
    most = limits.columns
    if columns > max(most, had):
        raise BadRequest(
            f"table {key[0]}/{key[1]} would have {columns} columns; limits.columns is {most}: store"
            " values of one kind as rows or as a map, or ask the operator to raise the limit",
            details=limit_facts("limits.columns", most, columns),
        )


def check_sent(key: tuple[str, str], had: int, sent: pa.Schema, limits: ShapeLimits) -> None:
    """As :func:`check_columns`, quickly, for the columns of a sent schema.

    Columns that may turn out to have no type do not count: drafting the table, which takes ten
    times as long, counts them.
    """
    most = max(limits.columns, had)
    if most < len(sent) <= MAX_FIELDS:
        typed = sum(not kind.num_fields and kind.id not in _MAY_HAVE_NONE for kind in sent.types)
        check_columns(key, had, typed, limits)


def _bytes_of(metadata: Mapping[bytes, bytes]) -> int:
    return sum(len(key) + len(value) for key, value in metadata.items())


_TABLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_COLUMN_BYTES = 255


def check_table_name(kind: str, name: object) -> str:
    """Return the name, or raise :class:`BadRequest`; ``kind`` is "namespace" or "table"."""
    if not isinstance(name, str) or not _TABLE.fullmatch(name):
        raise BadRequest(
            f"{kind} {shown_name(name)} is not a name: letters, digits, '_', '.' and '-', the first"
            " a letter or digit, at most 128"
        )
    return name


def check_column_names(names: Iterable[str], reserved: Iterable[str]) -> None:
    """Raise :class:`BadRequest` for the first name that a table cannot have.

    Args:
        names: all columns of the table or batch, in order.
        reserved: names of the table's partition columns.
    """
    partition_columns = {name.casefold(): name for name in reserved}
    seen: dict[str, str] = {}
    for name in names:
        folded = name.casefold()
        if not name or len(name.encode(errors="surrogatepass")) > _COLUMN_BYTES:
            raise BadRequest(f"column {shown_name(name)}: a name has 1 to {_COLUMN_BYTES} bytes")
        if name.startswith("_"):
            raise BadRequest(f"column {name!r}: names that begin with '_' are reserved")
        if folded in partition_columns:
            raise BadRequest(
                f"column {name!r}: {partition_columns[folded]!r} is the name of a partition column"
            )
        if folded in seen:
            other = seen[folded]
            clash = "appears twice" if other == name else f"differs from {other!r} only in case"
            raise BadRequest(f"column {name!r} {clash}")
        seen[folded] = name


def check_shown(what: str, name: str) -> None:
    """Raise :class:`BadRequest` for a name with control or invisible characters.

    Args:
        what: what the name belongs to, for the error.
        name: any text.
    """
    if has_hidden(name):
        raise BadRequest(f"{what} {shown_name(name)} has control characters")


def check_shown_columns(fields: Iterable[pa.Field]) -> None:
    """Check the names of new columns and of their inner fields with :func:`check_shown`."""
    for field in fields:
        check_shown("column", field.name)
        if field.type.num_fields:
            kind = field.type
            check_shown_columns(kind.field(index) for index in range(kind.num_fields))
