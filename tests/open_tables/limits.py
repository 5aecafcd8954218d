"""What engines do not read as it is written, each with its reason.

A limit is a fault of an engine that our metadata cannot help. Reads that are not listed return
every value, and a listed limit that no read runs into any more fails the tests.
"""

from __future__ import annotations

from typing import NamedTuple


class Limit(NamedTuple):
    """A fault of an engine.

    Attributes:
        engine: The beginning of its name.
        told: A part of the difference or of the engine's message.
        why: What is missing in the engine.
        tables: The kinds of tables that show it; all if empty.
        filtered: The column whose filter shows it; any read if empty.
    """

    engine: str
    format: str
    told: str
    why: str
    tables: tuple[str, ...] = ()
    filtered: str = ""


_NULL_LISTS = "a null list of structs is read as an empty list (apache/iceberg-python 3833)"
_EPOCH = (
    "prunes by truncated instead of floored times, so `=` with a time shortly before 1970 finds"
    " nothing in partitions by year, month, day or hour"
)
_UNBOUNDED = (
    "takes an unknown bound of a column, as of infinities, for one that excludes every row, in its"
    " own tables too (test_a_data_set_of_deltalake_loses_rows_of_files_without_bounds)"
)
_MILLISECONDS = "reads instants of Delta in milliseconds, as its documentation says"
LIMITS: tuple[Limit, ...] = (
    Limit("pyiceberg", "iceberg", "column 'sl'", _NULL_LISTS, ("every_type",)),
    Limit("polars pyiceberg", "iceberg", "column 'sl'", _NULL_LISTS, ("every_type",)),
    Limit("duckdb", "iceberg", "0 rows, wanted 2", _EPOCH, ("by_month", "by_day"), "t"),
    Limit("duckdb", "iceberg", "0 rows, wanted 2", _EPOCH, ("by_day",), "wall"),
    Limit("deltalake pyarrow", "delta", "1 rows, wanted 2", _UNBOUNDED, ("every_type",), "f64"),
    Limit("deltalake pyarrow", "delta", " rows, wanted ", _UNBOUNDED, ("extremes",), "f"),
    Limit("deltalake pyarrow", "delta", "1 rows, wanted 2", _UNBOUNDED, ("extremes",), "f32"),
    Limit("deltalake pyarrow", "delta", "0 rows, wanted ", _UNBOUNDED, ("beyond",)),
    Limit("trino", "delta", "timestamp[us, tz=UTC]", _MILLISECONDS),
    Limit("trino", "delta", "Invalid isoformat string: '+10000", _MILLISECONDS),
    Limit("trino", "delta", " rows, wanted ", _MILLISECONDS, filtered="time"),
    Limit("trino", "delta", " rows, wanted ", _MILLISECONDS, filtered="t"),
)


def limit_of(engine: str, format: str, kind: str, columns: set[str], told: str) -> Limit | None:
    """The limit that explains what a read returned, if any."""
    for limit in LIMITS:
        if (
            engine.startswith(limit.engine)
            and format == limit.format
            and limit.told in told
            and (not limit.tables or kind in limit.tables)
            and (not limit.filtered or limit.filtered in columns)
        ):
            return limit
    return None
