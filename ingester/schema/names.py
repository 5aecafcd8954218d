"""Valid names for namespaces, tables and columns.

A valid name is safe as a folder name, as a Spark column, in a log line and in a terminal.
Columns that predate the rule on hidden characters keep their names. Pure.
"""

import re
from collections.abc import Iterable

import pyarrow as pa

from ingester.errors import BadRequest
from ingester.shown_text import has_hidden, shown_name

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
