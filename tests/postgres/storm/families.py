"""Statements on related tables: partitions, references, inheritance."""

from __future__ import annotations

from collections.abc import Callable

from tests.postgres.storm.ddl import create_as, definition, new_column
from tests.postgres.storm.dml import Statements, insert_span
from tests.postgres.storm.model import KEYS, SPAN, Column, Table, Yard


def create_partitioned(yard: Yard) -> Statements:
    """Create a table partitioned by ranges of its key, with two partitions and rows."""
    uid = yard.number_of_its_own()
    columns = [new_column(yard) for _ in range(2)]
    root = Table(uid, "public", f"p{uid}", columns, ("id",), f"pk{uid}", partitioned=True)
    root.highest = 2 * SPAN
    yard.add(root)
    text = [create_as(yard, root, " PARTITION BY RANGE (id)")]
    for number in range(2):
        text += _new_partition(yard, root, number)
    return [*text, insert_span(yard, root, SPAN - 20, SPAN + 20)]


def _as_part(yard: Yard, root: Table, number: int) -> Table:
    uid = yard.number_of_its_own()
    columns = [Column(each.name, each.kind, each.required) for each in root.columns]
    lowest = number * SPAN + 1
    return Table(
        uid,
        "public",
        f"part{uid}",
        columns,
        ("id",),
        f"pk{uid}",
        parent=root.uid,
        lowest=lowest,
        highest=lowest + SPAN - 1,
    )


def _bounds(part: Table) -> str:
    return f"FOR VALUES FROM ({part.lowest}) TO ({part.highest + 1})"


def _new_partition(yard: Yard, root: Table, number: int) -> Statements:
    part = yard.add(_as_part(yard, root, number))
    return [f"CREATE TABLE {part.sql} PARTITION OF {root.sql} {_bounds(part)}"]


def _ranges(yard: Yard, root: Table) -> None:
    """Compute the range of keys that has partitions."""
    parts = sorted(yard.parts(root), key=lambda each: each.lowest)
    root.lowest = parts[0].lowest
    root.highest = parts[0].highest
    for part in parts[1:]:
        if part.lowest != root.highest + 1:
            break
        root.highest = part.highest


def _free(yard: Yard, root: Table) -> list[int]:
    taken = {(part.lowest - 1) // SPAN for part in yard.parts(root)}
    return [number for number in range(KEYS // SPAN) if number not in taken]


def add_partition(yard: Yard, root: Table) -> Statements:
    """Add a partition."""
    free = _free(yard, root)
    if not free:
        return detach(yard, root)
    text = _new_partition(yard, root, yard.rng.choice(free))
    _ranges(yard, root)
    return text


def attach(yard: Yard, root: Table) -> Statements:
    """Attach a table with rows as a partition."""
    free = _free(yard, root)
    if not free:
        return detach(yard, root)
    part = yard.add(_as_part(yard, root, yard.rng.choice(free)))
    made = create_as(yard, part)
    filled = insert_span(yard, part, part.lowest, part.lowest + 30)
    text = f"ALTER TABLE {root.sql} ATTACH PARTITION {part.sql} {_bounds(part)}"
    _ranges(yard, root)
    return [made, filled, text]


def detach(yard: Yard, root: Table) -> Statements:
    """Detach a partition, which keeps its rows and is not touched again."""
    return _without_one(yard, root, lambda part: f"ALTER TABLE {root.sql} DETACH PARTITION {part}")


def drop_partition(yard: Yard, root: Table) -> Statements:
    """Drop a partition and its rows."""
    return _without_one(yard, root, lambda part: f"DROP TABLE {part}")


def _without_one(yard: Yard, root: Table, statement: Callable[[str], str]) -> Statements:
    parts = yard.parts(root)
    if len(parts) < 2:
        return add_partition(yard, root)
    part = yard.pick(*parts)
    assert part is not None
    yard.remove(part)
    _ranges(yard, root)
    return [statement(part.sql)]


def truncate_some(yard: Yard, root: Table) -> Statements:
    """Truncate a partition or the whole table."""
    table = yard.pick(root, *yard.parts(root))
    assert table is not None
    return [f"TRUNCATE {table.sql}", insert_span(yard, table, table.lowest, table.lowest + 9)]


def widen(yard: Yard, root: Table) -> Statements:
    """Add a column to the partitioned table and its partitions."""
    column = new_column(yard)
    column.kind = "text" if column.kind == "big" else column.kind
    for table in (root, *yard.parts(root)):
        table.columns.append(Column(column.name, column.kind))
        yard.touched.add(table.uid)
    default = yard.rng.choice(["", " DEFAULT NULL", " DEFAULT random()"])
    if default.endswith("()"):
        for table in (root, *yard.parts(root)):
            table.columns[-1].kind = column.kind = "float8"
    return [f"ALTER TABLE {root.sql} ADD COLUMN {definition(yard, column)}{default}"]


def rename_root(yard: Yard, root: Table) -> Statements:
    """Rename the root or move it into another schema, without its partitions."""
    old = root.sql
    if yard.rng.random() < 0.5:
        root.name = yard.new_name("n")
        return [f'ALTER TABLE {old} RENAME TO "{root.name}"']
    root.schema = "s1" if root.schema != "s1" else "public"
    return [f"ALTER TABLE {old} SET SCHEMA {root.schema}"]


def drop_root(yard: Yard, root: Table) -> Statements:
    """Drop the root with all partitions."""
    for part in yard.parts(root):
        yard.remove(part)
    yard.remove(root)
    return [f"DROP TABLE {root.sql}"]


def create_references(yard: Yard) -> Statements:
    """Create two tables, one of which references the other."""
    uid, other = yard.number_of_its_own(), yard.number_of_its_own()
    first = yard.add(Table(uid, "public", f"f{uid}", [new_column(yard)], ("id",), f"pk{uid}"))
    second = Table(other, "public", f"f{other}", [new_column(yard)], ("id",), f"pk{other}")
    second.columns.append(Column("ref", "ref"))
    second.references = first.uid
    yard.add(second)
    reference = f"ALTER TABLE {second.sql} ADD FOREIGN KEY (ref) REFERENCES {first.sql} (id)"
    reference += " ON DELETE CASCADE ON UPDATE CASCADE"
    rows = [insert_span(yard, table, 1, 30) for table in (first, second)]
    refer = f"UPDATE {second.sql} SET ref = id WHERE id % 2 = 0"
    return [create_as(yard, first), create_as(yard, second), reference, *rows, refer]


def truncate_cascade(yard: Yard) -> Statements:
    """Truncate a table and the tables that reference it."""
    referred = [table for table in yard.tables.values() if yard.referring(table)]
    table = yard.pick(*referred)
    if table is None:
        return create_references(yard)
    for each in yard.referring(table):
        yard.touched.add(each.uid)
    return [f"TRUNCATE {table.sql} CASCADE", insert_span(yard, table, 1, 15)]


def inherit(yard: Yard) -> Statements:
    """Create a table that inherits from another; the parent's rows stay its own."""
    parent = yard.pick(*(table for table in yard.alone() if table.key))
    if parent is None:
        return []
    uid = yard.number_of_its_own()
    child = Table(uid, "public", f"i{uid}", [], ("id",), f"pk{uid}", inherits=parent.uid)
    child.columns = [Column(each.name, each.kind, each.required) for each in parent.columns]
    yard.add(child)
    made = f"CREATE TABLE {child.sql} (CONSTRAINT {child.constraint} PRIMARY KEY (id))"
    return [f"{made} INHERITS ({parent.sql})", insert_span(yard, child, 1, 20)]


OfRoot = Callable[[Yard, Table], Statements]
OF_ROOTS: dict[OfRoot, int] = {
    add_partition: 4,
    attach: 6,
    detach: 4,
    drop_partition: 2,
    truncate_some: 3,
    widen: 3,
    rename_root: 2,
    drop_root: 1,
}
