"""Statements that change rows."""

from __future__ import annotations

from collections.abc import Callable

from tests.postgres.storm.model import SPAN, Catalog, Table
from tests.postgres.storm.values import KINDS, value

Statements = list[str]
_PART = "'p' || {g} % 3"


def _span(catalog: Catalog, table: Table, most: int) -> tuple[int, int]:
    """Draw a range of keys."""
    first = catalog.rng.randint(table.lowest, table.highest)
    return first, min(first + catalog.rng.randint(0, most), table.highest)


def _expressions(catalog: Catalog, table: Table, g: str) -> dict[str, str]:
    """Return an expression for each column outside of the key."""
    s = catalog.rng.randint(1, 99_999)
    found = {}
    for column in table.columns:
        if column.kind == "ref":
            found[column.quoted] = "NULL"
        elif column.required:
            found[column.quoted] = KINDS[column.kind].value.format(g=g, s=s)
        else:
            found[column.quoted] = value(column.kind, g, s)
    return found


def insert_span(
    catalog: Catalog, table: Table, first: int, last: int, *, on_conflict: str = ""
) -> str:
    """Insert the missing keys of a range."""
    values = {"id": "g", "part": _PART.format(g="g"), **_expressions(catalog, table, "g")}
    missing = "" if on_conflict else f" WHERE NOT EXISTS (SELECT FROM {table.sql} t WHERE t.id = g)"
    return (
        f"INSERT INTO {table.sql} ({', '.join(values)}) SELECT {', '.join(values.values())}"
        f" FROM generate_series({first}, {last}) g{missing}{on_conflict}"
    )


def insert(catalog: Catalog, table: Table) -> Statements:
    return [insert_span(catalog, table, *_span(catalog, table, 40))]


def upsert(catalog: Catalog, table: Table) -> Statements:
    """Insert some rows, or update existing ones."""
    if table.key != ("id",) or table.deferrable or not table.columns or table.partitioned:
        return insert(catalog, table)
    column = catalog.rng.choice(table.columns).quoted
    conflict = f" ON CONFLICT (id) DO UPDATE SET {column} = EXCLUDED.{column}"
    return [insert_span(catalog, table, *_span(catalog, table, 40), on_conflict=conflict)]


def update(catalog: Catalog, table: Table) -> Statements:
    """Update some columns of some rows; large values usually stay unchanged."""
    columns = [column for column in table.columns if column.kind != "ref"]
    if not columns:
        return insert(catalog, table)
    chosen = catalog.rng.sample(columns, catalog.rng.randint(1, len(columns)))
    values = _expressions(catalog, table, "id")
    sets = [f"{column.quoted} = {values[column.quoted]}" for column in chosen]
    first, last = _span(catalog, table, 60)
    return [f"UPDATE {table.sql} SET {', '.join(sets)} WHERE id BETWEEN {first} AND {last}"]


def delete(catalog: Catalog, table: Table) -> Statements:
    first, last = _span(catalog, table, 30)
    return [f"DELETE FROM {table.sql} WHERE id BETWEEN {first} AND {last}"]


def reborn(catalog: Catalog, table: Table) -> Statements:
    """Delete some rows and insert others under their keys."""
    first, last = _span(catalog, table, 20)
    return [
        f"DELETE FROM {table.sql} WHERE id BETWEEN {first} AND {last}",
        insert_span(catalog, table, first, last),
    ]


def swap_keys(catalog: Catalog, table: Table) -> Statements:
    """Swap the keys of two rows by way of a third key."""
    if table.partitioned or table.parent is not None:
        return update(catalog, table)
    one, other = _span(catalog, table, 20)
    moves = [(one, -one), (other, one), (-one, other)]
    return [f"UPDATE {table.sql} SET id = {to} WHERE id = {of}" for of, to in moves if one != other]


def move_keys(catalog: Catalog, table: Table) -> Statements:
    """Move keys: by one if the key is deferrable, else to an unused range and half of them back."""
    if table.partitioned or table.parent is not None:
        return update(catalog, table)
    first, last = _span(catalog, table, 20)
    where = f"WHERE id BETWEEN {first} AND {last}"
    if table.deferrable:
        top = f"DELETE FROM {table.sql} WHERE id = {last + 1}"
        around = f"UPDATE {table.sql} SET id = {first + last} - id {where}"
        return catalog.rng.choice([[top, f"UPDATE {table.sql} SET id = id + 1 {where}"], [around]])
    away = f"UPDATE {table.sql} SET id = id + 1000000 {where}"
    back = f"UPDATE {table.sql} SET id = id - 1000000 WHERE id > 1000000 AND id % 2 = 0"
    return [away, back]


def route(catalog: Catalog, table: Table) -> Statements:
    """Move rows from one partition to another."""
    if not table.partitioned:
        return update(catalog, table)
    first, last = _span(catalog, table, 10)
    to = catalog.rng.choice([first + SPAN, first - SPAN])
    if not table.lowest <= to <= table.highest - (last - first):
        return update(catalog, table)
    return [
        f"DELETE FROM {table.sql} WHERE id BETWEEN {to} AND {to + last - first}",
        f"UPDATE {table.sql} SET id = id + {to - first} WHERE id BETWEEN {first} AND {last}",
    ]


def large(catalog: Catalog, table: Table) -> Statements:
    """Touch every key, some thousand rows."""
    return [insert_span(catalog, table, table.lowest, table.highest), *update(catalog, table)]


def empty(catalog: Catalog, table: Table) -> Statements:
    """Delete all rows."""
    return [f"DELETE FROM {table.sql}"]


def poison(catalog: Catalog, table: Table) -> Statements:
    """Write a value that no column of the copy can hold, or remove such values."""
    if table.poisoned is not None:
        quoted = f'"{table.poisoned}"'
        kind = next((c.kind for c in table.columns if c.name == table.poisoned), None)
        table.poisoned = None
        if kind is None or KINDS[kind].poison is None:
            return update(catalog, table)
        healthy = KINDS[kind].value.format(g="1", s=1)
        bad = f"{quoted} < '1900-01-01' OR {quoted} > '9999-01-01'"
        return [f"UPDATE {table.sql} SET {quoted} = {healthy} WHERE {bad}"]
    columns = [column for column in table.columns if KINDS[column.kind].poison]
    if not columns:
        return update(catalog, table)
    column = catalog.rng.choice(columns)
    table.poisoned = column.name
    first, last = _span(catalog, table, 200)
    sets = f"{column.quoted} = {KINDS[column.kind].poison}"
    return [f"UPDATE {table.sql} SET {sets} WHERE id BETWEEN {first} AND {last}"]


Change = Callable[[Catalog, Table], Statements]
CHANGES: dict[Change, int] = {
    insert: 10,
    upsert: 6,
    update: 12,
    delete: 5,
    reborn: 4,
    swap_keys: 4,
    move_keys: 4,
    route: 3,
    empty: 1,
}
"""The weight of each change. ``large`` and ``poison`` are drawn separately."""


def some_change(catalog: Catalog, table: Table) -> Statements:
    """Draw a change that this table allows."""
    if not table.changeable:
        return insert(catalog, table)
    [change] = catalog.rng.choices(list(CHANGES), list(CHANGES.values()))
    return change(catalog, table)
