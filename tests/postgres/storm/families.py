"""Statements on related tables: partitions, references, inheritance."""

from __future__ import annotations

from collections.abc import Callable

from tests.postgres.storm.ddl import create_as, definition, new_column
from tests.postgres.storm.dml import Statements, insert_span
from tests.postgres.storm.model import KEYS, SPAN, Catalog, Column, Table


def create_partitioned(catalog: Catalog) -> Statements:
    """Create a table partitioned by ranges of its key, with two partitions and rows."""
    uid = catalog.number_of_its_own()
    columns = [new_column(catalog) for _ in range(2)]
    root = Table(uid, "public", f"p{uid}", columns, ("id",), f"pk{uid}", partitioned=True)
    root.highest = 2 * SPAN
    catalog.add(root)
    text = [create_as(catalog, root, " PARTITION BY RANGE (id)")]
    for number in range(2):
        text += _new_partition(catalog, root, number)
    return [*text, insert_span(catalog, root, SPAN - 20, SPAN + 20)]


def _as_part(catalog: Catalog, root: Table, number: int) -> Table:
    uid = catalog.number_of_its_own()
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


def _new_partition(catalog: Catalog, root: Table, number: int) -> Statements:
    part = catalog.add(_as_part(catalog, root, number))
    return [f"CREATE TABLE {part.sql} PARTITION OF {root.sql} {_bounds(part)}"]


def _ranges(catalog: Catalog, root: Table) -> None:
    """Compute the range of keys that has partitions."""
    parts = sorted(catalog.parts(root), key=lambda each: each.lowest)
    root.lowest = parts[0].lowest
    root.highest = parts[0].highest
    for part in parts[1:]:
        if part.lowest != root.highest + 1:
            break
        root.highest = part.highest


def _free(catalog: Catalog, root: Table) -> list[int]:
    taken = {(part.lowest - 1) // SPAN for part in catalog.parts(root)}
    return [number for number in range(KEYS // SPAN) if number not in taken]


def add_partition(catalog: Catalog, root: Table) -> Statements:
    """Add a partition."""
    free = _free(catalog, root)
    if not free:
        return detach(catalog, root)
    text = _new_partition(catalog, root, catalog.rng.choice(free))
    _ranges(catalog, root)
    return text


def attach(catalog: Catalog, root: Table) -> Statements:
    """Attach a table with rows as a partition."""
    free = _free(catalog, root)
    if not free:
        return detach(catalog, root)
    part = catalog.add(_as_part(catalog, root, catalog.rng.choice(free)))
    made = create_as(catalog, part)
    filled = insert_span(catalog, part, part.lowest, part.lowest + 30)
    text = f"ALTER TABLE {root.sql} ATTACH PARTITION {part.sql} {_bounds(part)}"
    _ranges(catalog, root)
    return [made, filled, text]


def detach(catalog: Catalog, root: Table) -> Statements:
    """Detach a partition, which keeps its rows and is not touched again."""
    return _without_one(
        catalog, root, lambda part: f"ALTER TABLE {root.sql} DETACH PARTITION {part}"
    )


def drop_partition(catalog: Catalog, root: Table) -> Statements:
    """Drop a partition and its rows."""
    return _without_one(catalog, root, lambda part: f"DROP TABLE {part}")


def _without_one(catalog: Catalog, root: Table, statement: Callable[[str], str]) -> Statements:
    parts = catalog.parts(root)
    if len(parts) < 2:
        return add_partition(catalog, root)
    part = catalog.pick(*parts)
    assert part is not None
    catalog.remove(part)
    _ranges(catalog, root)
    return [statement(part.sql)]


def truncate_some(catalog: Catalog, root: Table) -> Statements:
    """Truncate a partition or the whole table."""
    table = catalog.pick(root, *catalog.parts(root))
    assert table is not None
    return [f"TRUNCATE {table.sql}", insert_span(catalog, table, table.lowest, table.lowest + 9)]


def widen(catalog: Catalog, root: Table) -> Statements:
    """Add a column to the partitioned table and its partitions."""
    column = new_column(catalog)
    column.kind = "text" if column.kind == "big" else column.kind
    for table in (root, *catalog.parts(root)):
        table.columns.append(Column(column.name, column.kind))
        catalog.touched.add(table.uid)
    default = catalog.rng.choice(["", " DEFAULT NULL", " DEFAULT random()"])
    if default.endswith("()"):
        for table in (root, *catalog.parts(root)):
            table.columns[-1].kind = column.kind = "float8"
    return [f"ALTER TABLE {root.sql} ADD COLUMN {definition(catalog, column)}{default}"]


def rename_root(catalog: Catalog, root: Table) -> Statements:
    """Rename the root or move it into another schema, without its partitions."""
    old = root.sql
    if catalog.rng.random() < 0.5:
        root.name = catalog.new_name("n")
        return [f'ALTER TABLE {old} RENAME TO "{root.name}"']
    root.schema = "s1" if root.schema != "s1" else "public"
    return [f"ALTER TABLE {old} SET SCHEMA {root.schema}"]


def drop_root(catalog: Catalog, root: Table) -> Statements:
    """Drop the root with all partitions."""
    for part in catalog.parts(root):
        catalog.remove(part)
    catalog.remove(root)
    return [f"DROP TABLE {root.sql}"]


def create_references(catalog: Catalog) -> Statements:
    """Create two tables, one of which references the other."""
    uid, other = catalog.number_of_its_own(), catalog.number_of_its_own()
    first = catalog.add(Table(uid, "public", f"f{uid}", [new_column(catalog)], ("id",), f"pk{uid}"))
    second = Table(other, "public", f"f{other}", [new_column(catalog)], ("id",), f"pk{other}")
    second.columns.append(Column("ref", "ref"))
    second.references = first.uid
    catalog.add(second)
    reference = f"ALTER TABLE {second.sql} ADD FOREIGN KEY (ref) REFERENCES {first.sql} (id)"
    reference += " ON DELETE CASCADE ON UPDATE CASCADE"
    rows = [insert_span(catalog, table, 1, 30) for table in (first, second)]
    refer = f"UPDATE {second.sql} SET ref = id WHERE id % 2 = 0"
    return [create_as(catalog, first), create_as(catalog, second), reference, *rows, refer]


def truncate_cascade(catalog: Catalog) -> Statements:
    """Truncate a table and the tables that reference it."""
    referred = [table for table in catalog.tables.values() if catalog.referring(table)]
    table = catalog.pick(*referred)
    if table is None:
        return create_references(catalog)
    for each in catalog.referring(table):
        catalog.touched.add(each.uid)
    return [f"TRUNCATE {table.sql} CASCADE", insert_span(catalog, table, 1, 15)]


def inherit(catalog: Catalog) -> Statements:
    """Create a table that inherits from another; the parent's rows stay its own."""
    parent = catalog.pick(*(table for table in catalog.alone() if table.key))
    if parent is None:
        return []
    uid = catalog.number_of_its_own()
    child = Table(uid, "public", f"i{uid}", [], ("id",), f"pk{uid}", inherits=parent.uid)
    child.columns = [Column(each.name, each.kind, each.required) for each in parent.columns]
    catalog.add(child)
    made = f"CREATE TABLE {child.sql} (CONSTRAINT {child.constraint} PRIMARY KEY (id))"
    return [f"{made} INHERITS ({parent.sql})", insert_span(catalog, child, 1, 20)]


OfRoot = Callable[[Catalog, Table], Statements]
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
