"""The next transaction of a session, drawn by its catalog.

draw ─▶ statements on tables and rows ─▶ with savepoints, prepared, rolled back
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from tests.postgres.storm.ddl import ALTERATIONS, create, keyless, rename_label
from tests.postgres.storm.dml import Statements, insert, large, poison, some_change, update
from tests.postgres.storm.families import (
    OF_ROOTS,
    create_partitioned,
    create_references,
    inherit,
    truncate_cascade,
)
from tests.postgres.storm.model import Catalog, Column, Table

SHARED = (
    "CREATE TABLE public.shared1 (id bigint PRIMARY KEY, part text NOT NULL, v text, n bigint)",
    "CREATE TABLE public.shared2 (id bigint, part text, v text, n bigint, PRIMARY KEY (id, part))",
)
"""Tables whose rows all sessions change and that no session alters."""
FEWEST, MOST = 4, 9
"""The approximate number of tables in a catalog."""


class Ending(Enum):
    """The ways in which a transaction ends."""

    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    PREPARED = "PREPARE TRANSACTION"
    PREPARED_ROLLBACK = "PREPARE TRANSACTION, and back"


@dataclass(slots=True)
class Transaction:
    """Statements of one transaction; the model depends on those in ``altering``, the DDL."""

    statements: list[str] = field(default_factory=list)
    altering: set[int] = field(default_factory=set)
    """Indexes in ``statements``."""
    ending: Ending = Ending.COMMIT
    touched: set[int] = field(default_factory=set)
    """Tables by ``uid``."""

    def add(self, statements: Statements, *, alters: bool) -> None:
        """Append statements."""
        for text in statements:
            # The model does not depend on the rows of a new table.
            if alters and not text.startswith(("INSERT", "UPDATE", "DELETE")):
                self.altering.add(len(self.statements))
            self.statements.append(text)


def shared_tables() -> list[Table]:
    """Return the model of :data:`SHARED`."""
    columns = [Column("v", "text"), Column("n", "int8")]
    return [
        Table(-1, "public", "shared1", columns, ("id",)),
        Table(-2, "public", "shared2", columns, ("id", "part")),
    ]


def draw(catalog: Catalog, *, calm: bool = False) -> Transaction:
    """Draw the next transaction of a catalog; a ``calm`` one contains no DDL."""
    rng = catalog.rng
    found = Transaction()
    catalog.touched = set()
    before = catalog.state()
    for _ in range(rng.choice([1, 1, 2, 3, 5])):
        if not calm and (len(catalog.tables) < FEWEST or rng.random() < 0.12):
            _alter(catalog, found)
        else:
            _change(catalog, found)
        if rng.random() < 0.1:
            _undone(catalog, found)
    found.touched = catalog.touched
    found.ending = rng.choices(list(Ending), [88, 5, 5, 2])[0]
    if found.ending in (Ending.ROLLBACK, Ending.PREPARED_ROLLBACK):
        catalog.restore(before)
    return found


def _undone(catalog: Catalog, transaction: Transaction) -> None:
    """Add statements that a savepoint rolls back."""
    before = catalog.state()
    transaction.add(["SAVEPOINT s"], alters=False)
    _change(catalog, transaction)
    if catalog.rng.random() < 0.3:
        _alter(catalog, transaction)
    undo = catalog.rng.random() < 0.6
    transaction.add(["ROLLBACK TO s" if undo else "RELEASE s"], alters=False)
    if undo:
        catalog.restore(before)


def _change(catalog: Catalog, transaction: Transaction) -> None:
    """Change rows of one table."""
    rng = catalog.rng
    table = catalog.pick(*catalog.tables.values(), *shared_tables())
    assert table is not None
    if table.uid < 0:
        draw_from: Callable[[Catalog, Table], Statements] = rng.choice([insert, update])
    elif rng.random() < 0.02:
        draw_from = large
    elif (table.poisoned and rng.random() < 0.2) or rng.random() < 0.01:
        draw_from = poison
    else:
        draw_from = some_change
    if not table.changeable and draw_from is not some_change:
        draw_from = insert
    transaction.add(draw_from(catalog, table), alters=False)


def _alter(catalog: Catalog, transaction: Transaction) -> None:
    """Create, alter or drop one table, or a family of tables."""
    rng = catalog.rng
    alone = catalog.alone()
    roots = [table for table in catalog.tables.values() if table.partitioned]
    if len(alone) < FEWEST:
        transaction.add(create(catalog), alters=True)
        return
    makers: list[tuple[Callable[[], Statements], int]] = [
        (lambda: create(catalog), 6 if len(alone) < MOST else 0),
        (lambda: keyless(catalog), 1 if len(alone) < MOST else 0),
        (lambda: create_partitioned(catalog), 3 if len(roots) < 2 else 0),
        (lambda: create_references(catalog), 2 if len(catalog.tables) < 2 * MOST else 0),
        (lambda: truncate_cascade(catalog), 2),
        (lambda: inherit(catalog), 1 if len(catalog.tables) < 2 * MOST else 0),
        (lambda: rename_label(catalog), 2),
        (lambda: _of_root(catalog, roots), 12 if roots else 0),
        (lambda: _of_one(catalog, alone), 40),
    ]
    [maker] = rng.choices([each for each, _ in makers], [weight for _, weight in makers])
    transaction.add(maker(), alters=True)


def _of_root(catalog: Catalog, roots: list[Table]) -> Statements:
    root = catalog.pick(*roots)
    assert root is not None
    [step] = catalog.rng.choices(list(OF_ROOTS), list(OF_ROOTS.values()))
    return step(catalog, root)


def _of_one(catalog: Catalog, alone: list[Table]) -> Statements:
    table = catalog.pick(*alone)
    assert table is not None
    [step] = catalog.rng.choices(list(ALTERATIONS), list(ALTERATIONS.values()))
    return step(catalog, table)
