"""Totals over every column, for comparing two copies of the same rows.

    rows                 number of rows
    sum(distance)        an integer column: the sum of its values
    length(carrier)      a string column: the number of its characters
    seconds(time_hour)   a timestamp column: the sum of seconds since 1970
    nulls(dep_delay)     any column: the number of nulls

All totals are integers and are compared for equality. Each is defined twice: with pyarrow, and in
``spark_totals`` as SQL (``tests/demo/test_totals.py``).
"""

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

Totals = Mapping[str, int]


def totals_of(rows: pa.Table, schema: pa.Schema) -> dict[str, int]:
    """The totals of ``rows`` over the columns of ``schema``."""
    found = {"rows": int(rows.num_rows)}
    for field in schema:
        column = rows[field.name]
        name, values = total_name(field), column
        if pa.types.is_timestamp(field.type):
            values = pc.divide(column.cast(pa.timestamp("us", "UTC")).cast(pa.int64()), 1_000_000)
        elif pa.types.is_string(field.type):
            values = pc.utf8_length(column)
        found[name] = int(pc.sum(values).as_py() or 0)
        found[f"nulls({field.name})"] = int(column.null_count)
    return found


def total_name(field: pa.Field) -> str:
    """The name of the column's total.

    Raises:
        TypeError: No total is defined for the type.
    """
    if pa.types.is_timestamp(field.type):
        return f"seconds({field.name})"
    if pa.types.is_string(field.type):
        return f"length({field.name})"
    if pa.types.is_integer(field.type):
        return f"sum({field.name})"
    raise TypeError(f"no total is defined for column {field.name!r} of type {field.type}")


def spark_totals(schema: pa.Schema) -> dict[str, str]:
    """The same totals as SQL expressions, by name."""
    expressions = {"rows": "count(*)"}
    for field in schema:
        name, column = total_name(field), f"`{field.name}`"
        value = column
        if pa.types.is_timestamp(field.type):
            value = f"unix_seconds({column})"
        elif pa.types.is_string(field.type):
            value = f"length({column})"
        expressions[name] = f"coalesce(sum({value}), 0)"
        expressions[f"nulls({field.name})"] = f"count_if({column} is null)"
    return expressions


def disagreements(who: str, found: Totals, source: Totals) -> list[str]:
    """One sentence, starting with ``who``, per total that differs or is missing."""
    sentences = []
    for name, expected in source.items():
        if name not in found:
            sentences.append(f"{who} has no {name}; the source has {expected}")
        elif found[name] != expected:
            difference = found[name] - expected
            sentences.append(
                f"{who} has {name} = {found[name]}; the source has {expected} ({difference:+d})"
            )
    return sentences
