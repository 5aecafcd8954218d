"""Names that the ingester takes for namespaces, tables and columns.

Law of this file: a name that passes is safe as a folder name, as a Spark column and in a log line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ingester.errors import InvalidRequest

_TABLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_COLUMN_BYTES = 255


def check_table_name(kind: str, name: object) -> str:
    """The name itself, or :class:`InvalidRequest` naming it; ``kind`` is "namespace" or "table"."""
    if not isinstance(name, str) or not _TABLE.fullmatch(name):
        raise InvalidRequest(
            f"{kind} {name!r} is not a name: letters, digits, '_', '.' and '-', the first a letter"
            " or digit, at most 128"
        )
    return name


def check_column_names(names: Iterable[str], reserved: Iterable[str]) -> None:
    """Raise :class:`InvalidRequest` for the first name that a table cannot have.

    Args:
        names: all columns of the table, or of a batch, in order.
        reserved: names of the table's partition columns.
    """
    taken = {name.casefold(): name for name in reserved}
    seen: dict[str, str] = {}
    for name in names:
        folded = name.casefold()
        if not name or len(name.encode(errors="surrogatepass")) > _COLUMN_BYTES:
            raise InvalidRequest(f"column {name[:64]!r}: a name has 1 to {_COLUMN_BYTES} bytes")
        if name.startswith("_"):
            raise InvalidRequest(f"column {name!r}: names that begin with '_' are reserved")
        if folded in taken:
            raise InvalidRequest(
                f"column {name!r}: {taken[folded]!r} is the name of a partition column"
            )
        if folded in seen:
            other = seen[folded]
            clash = "stands twice" if other == name else f"differs from {other!r} only in case"
            raise InvalidRequest(f"column {name!r} {clash}")
        seen[folded] = name
