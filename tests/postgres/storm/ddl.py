"""Statements that alter single tables; ``families`` has those for related tables."""

from __future__ import annotations

from collections.abc import Callable

from tests.postgres.storm.dml import Statements, insert_span
from tests.postgres.storm.model import Catalog, Column, Table
from tests.postgres.storm.values import ENUM, KINDS, PLAIN, SCHEMAS, value

ODD_NAMES = ("Order Details {}", "_under{}", "ümlaut{}", "a.b{}", "UPPER{}")
ODD_COLUMNS = ("_c{}", "C {}", "ü{}", "select{}")


def new_column(catalog: Catalog) -> Column:
    """Draw a column with an unused name."""
    form = catalog.rng.choice(ODD_COLUMNS) if catalog.rng.random() < 0.1 else "c{}"
    return Column(form.format(catalog.number_of_its_own()), catalog.rng.choice(PLAIN))


def definition(catalog: Catalog, column: Column) -> str:
    """Return a column's definition for ADD COLUMN and CREATE TABLE."""
    return f"{column.quoted} {KINDS[column.kind].sql}"


def create(catalog: Catalog, *, keyed: bool = True, rows: int = 60) -> Statements:
    """Create a table, usually with rows."""
    rng = catalog.rng
    uid = catalog.number_of_its_own()
    form = rng.choice(ODD_NAMES) if rng.random() < 0.1 else "t{}"
    key = rng.choice([("id",), ("id",), ("id", "part"), ("part", "id")]) if keyed else ()
    columns = [new_column(catalog) for _ in range(rng.randint(1, 4))]
    columns.append(Column(f"big{uid}", "big"))
    table = Table(uid, rng.choice(SCHEMAS), form.format(uid), columns, key)
    table.unlogged = rng.random() < 0.05
    table.constraint = f"pk{uid}" if keyed else ""
    catalog.add(table)
    kept = rng.randint(0, rows)
    return [*_create(catalog, table), *([insert_span(catalog, table, 1, kept)] if kept else [])]


def create_as(catalog: Catalog, table: Table, more: str = "") -> str:
    """Return the CREATE TABLE of a modelled table; ``more`` follows its columns."""
    parts = ["id bigint NOT NULL", "part text NOT NULL"]
    parts += [definition(catalog, column) for column in table.columns]
    if table.key:
        deferrable = " DEFERRABLE INITIALLY DEFERRED" if table.deferrable else ""
        key = ", ".join(table.key)
        parts.append(f"CONSTRAINT {table.constraint} PRIMARY KEY ({key}){deferrable}")
    unlogged = "UNLOGGED " if table.unlogged else ""
    return f"CREATE {unlogged}TABLE {table.sql} ({', '.join(parts)}){more}"


def _create(catalog: Catalog, table: Table) -> Statements:
    big = [column.quoted for column in table.columns if column.kind == "big"]
    outside = [f"ALTER TABLE {table.sql} ALTER COLUMN {name} SET STORAGE EXTERNAL" for name in big]
    return [create_as(catalog, table), *outside]


def keyless(catalog: Catalog) -> Statements:
    """Create a table without a key."""
    return create(catalog, keyed=False, rows=10)


def drop(catalog: Catalog, table: Table) -> Statements:
    """Drop a table."""
    catalog.remove(table)
    return [f"DROP TABLE {table.sql}"]


def recreate(catalog: Catalog, table: Table) -> Statements:
    """Drop a table and create another with its name at once."""
    dropped = f"DROP TABLE {table.sql}"
    catalog.remove(table)
    made = create(catalog)
    newest = max(catalog.tables.values(), key=lambda each: each.uid)
    old = newest.sql
    newest.schema, newest.name = table.schema, table.name
    return [dropped, *(text.replace(old, newest.sql) for text in made)]


def add_column(catalog: Catalog, table: Table) -> Statements:
    """Add a column: empty, with a constant default, or with a different value in each row."""
    column = new_column(catalog)
    table.columns.append(column)
    text = f"ALTER TABLE {table.sql} ADD COLUMN {definition(catalog, column)}"
    kind = catalog.rng.choice(["empty", "constant", "required", "volatile"])
    if kind == "volatile":
        column.kind = "float8"
        text = f"ALTER TABLE {table.sql} ADD COLUMN {definition(catalog, column)} DEFAULT random()"
    elif kind != "empty":
        if column.kind == "big":
            column.kind = "text"
        constant = KINDS[column.kind].value.format(g="7", s=catalog.rng.randint(1, 99))
        column.required = kind == "required"
        text = (
            f"ALTER TABLE {table.sql} ADD COLUMN {definition(catalog, column)} DEFAULT ({constant})"
        )
        text += " NOT NULL" if column.required else ""
    return [text]


def drop_column(catalog: Catalog, table: Table) -> Statements:
    """Drop a column."""
    if len(table.columns) < 2:
        return add_column(catalog, table)
    column = table.columns.pop(catalog.rng.randrange(len(table.columns)))
    return [f"ALTER TABLE {table.sql} DROP COLUMN {column.quoted}"]


def again_column(catalog: Catalog, table: Table) -> Statements:
    """Drop a column and add one with its name, of the same type or another."""
    if not table.columns:
        return add_column(catalog, table)
    column = catalog.rng.choice(table.columns)
    dropped = f"ALTER TABLE {table.sql} DROP COLUMN {column.quoted}"
    column.kind = catalog.rng.choice([column.kind, catalog.rng.choice(PLAIN)])
    column.kind, column.required = "text" if column.kind == "ref" else column.kind, False
    added = f"ALTER TABLE {table.sql} ADD COLUMN {definition(catalog, column)}"
    filled = f"UPDATE {table.sql} SET {column.quoted} = {value(column.kind, 'id', 11)}"
    fill = table.changeable and catalog.rng.random() < 0.5
    return [dropped, added, *([filled] if fill else [])]


def rename_column(catalog: Catalog, table: Table) -> Statements:
    """Rename a column, or swap the names of two columns."""
    if not table.columns:
        return add_column(catalog, table)
    alter = f"ALTER TABLE {table.sql} RENAME COLUMN"
    if len(table.columns) > 1 and catalog.rng.random() < 0.4:
        one, other = catalog.rng.sample(table.columns, 2)
        text = [f"{alter} {one.quoted} TO swapped", f"{alter} {other.quoted} TO {one.quoted}"]
        text.append(f"{alter} swapped TO {other.quoted}")
        one.name, other.name = other.name, one.name
        return text
    column = catalog.rng.choice(table.columns)
    old, was_poisoned = column.quoted, column.name == table.poisoned
    column.name = f"r{catalog.number_of_its_own()}"
    table.poisoned = column.name if was_poisoned else table.poisoned
    return [f"{alter} {old} TO {column.quoted}"]


def alter_type(catalog: Catalog, table: Table) -> Statements:
    """Change a column's type to a wider one, or to any other with ``USING``."""
    columns = [column for column in table.columns if column.kind not in ("ref", "big")]
    if not columns:
        return add_column(catalog, table)
    column = catalog.rng.choice(columns)
    alter = f"ALTER TABLE {table.sql} ALTER COLUMN {column.quoted}"
    widens = KINDS[column.kind].widens
    if widens and catalog.rng.random() < 0.6:
        column.kind = catalog.rng.choice(widens)
        return [f"{alter} TYPE {KINDS[column.kind].sql}"]
    column.kind = catalog.rng.choice([kind for kind in PLAIN if kind != "big"])
    if table.poisoned == column.name:
        table.poisoned = None
    using = KINDS[column.kind].value.format(g="id", s=3)
    return [f"{alter} DROP DEFAULT", f"{alter} TYPE {KINDS[column.kind].sql} USING {using}"]


def rename(catalog: Catalog, table: Table) -> Statements:
    """Rename a table."""
    old, table.name = table.sql, catalog.new_name("n")
    return [f'ALTER TABLE {old} RENAME TO "{table.name}"']


def swap_names(catalog: Catalog, table: Table) -> Statements:
    """Swap the names of two tables in a schema."""
    others = [each for each in catalog.alone() if each.schema == table.schema and each is not table]
    other = catalog.pick(*others)
    if other is None:
        return rename(catalog, table)
    third = catalog.new_name("n")
    text = [
        f'ALTER TABLE {table.sql} RENAME TO "{third}"',
        f'ALTER TABLE {other.sql} RENAME TO "{table.name}"',
        f'ALTER TABLE {table.schema}."{third}" RENAME TO "{other.name}"',
    ]
    table.name, other.name = other.name, table.name
    return text


def set_schema(catalog: Catalog, table: Table) -> Statements:
    """Move a table into another schema."""
    old = table.sql
    table.schema = catalog.rng.choice([each for each in SCHEMAS if each != table.schema])
    return [f"ALTER TABLE {old} SET SCHEMA {table.schema}"]


def set_logged(catalog: Catalog, table: Table) -> Statements:
    """Make a logged table unlogged, or an unlogged one logged."""
    table.unlogged = not table.unlogged
    return [f"ALTER TABLE {table.sql} SET {'UNLOGGED' if table.unlogged else 'LOGGED'}"]


def set_identity(catalog: Catalog, table: Table) -> Statements:
    """Change the replica identity: the part of old rows that is logged."""
    choices = ["DEFAULT", "FULL", "FULL", "NOTHING"]
    table.identity = catalog.rng.choice([each for each in choices if each != table.identity])
    return [f"ALTER TABLE {table.sql} REPLICA IDENTITY {table.identity}"]


def change_key(catalog: Catalog, table: Table) -> Statements:
    """Drop, add or replace the primary key; with a deferrable key, old rows are logged whole."""
    alter = f"ALTER TABLE {table.sql}"
    text = [f"{alter} DROP CONSTRAINT {table.constraint}"] if table.key else []
    if table.key and catalog.rng.random() < 0.15:
        table.key, table.constraint, table.deferrable = (), "", False
        return text
    table.deferrable = catalog.rng.random() < 0.4
    table.key = catalog.rng.choice([("id",), ("id", "part"), ("part", "id")])
    table.constraint = f"pk{catalog.number_of_its_own()}"
    deferrable = " DEFERRABLE INITIALLY DEFERRED" if table.deferrable else ""
    key = ", ".join(table.key)
    text.append(f"{alter} ADD CONSTRAINT {table.constraint} PRIMARY KEY ({key}){deferrable}")
    if table.deferrable or catalog.rng.random() < 0.3:
        table.identity = "FULL"
        text.append(f"{alter} REPLICA IDENTITY FULL")
    elif table.identity != "DEFAULT":
        table.identity = "DEFAULT"
        text.append(f"{alter} REPLICA IDENTITY DEFAULT")
    return text


def truncate(catalog: Catalog, table: Table) -> Statements:
    """Truncate a table and usually insert other rows in the same transaction."""
    restart = " RESTART IDENTITY" if catalog.rng.random() < 0.3 else ""
    refill = [insert_span(catalog, table, 1, 20)] if catalog.rng.random() < 0.6 else []
    return [f"TRUNCATE {table.sql}{restart}", *refill]


def cluster(catalog: Catalog, table: Table) -> Statements:
    """Rewrite a table without changing it."""
    return [f"CLUSTER {table.sql} USING {table.constraint}"] if table.key else []


def rename_label(catalog: Catalog) -> Statements:
    """Rename a label of the enum; only the first catalog does this."""
    if catalog.number != 0:
        return []
    at = catalog.rng.randrange(len(catalog.moods))
    old, catalog.moods[at] = catalog.moods[at], f"mood{at}x{catalog.number_of_its_own()}"
    return [f"ALTER TYPE public.{ENUM} RENAME VALUE '{old}' TO '{catalog.moods[at]}'"]


OfTable = Callable[[Catalog, Table], Statements]
ALTERATIONS: dict[OfTable, int] = {
    add_column: 10,
    drop_column: 4,
    again_column: 4,
    rename_column: 4,
    alter_type: 6,
    rename: 3,
    swap_names: 3,
    set_schema: 3,
    set_logged: 2,
    set_identity: 3,
    change_key: 5,
    truncate: 5,
    cluster: 2,
    drop: 2,
    recreate: 3,
}
