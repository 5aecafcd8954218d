"""The next transaction of a session, drawn by its yard.

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
from tests.postgres.storm.model import Column, Table, Yard

SHARED = (
    "CREATE TABLE public.shared1 (id bigint PRIMARY KEY, part text NOT NULL, v text, n bigint)",
    "CREATE TABLE public.shared2 (id bigint, part text, v text, n bigint, PRIMARY KEY (id, part))",
)
"""Tables whose rows all sessions change and that no session alters."""
FEWEST, MOST = 4, 9
"""The approximate number of tables in a yard."""


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


def draw(yard: Yard, *, calm: bool = False) -> Transaction:
    """Draw the next transaction of a yard; a ``calm`` one contains no DDL."""
    rng = yard.rng
    found = Transaction()
    yard.touched = set()
    before = yard.state()
    for _ in range(rng.choice([1, 1, 2, 3, 5])):
        if not calm and (len(yard.tables) < FEWEST or rng.random() < 0.12):
            _alter(yard, found)
        else:
            _change(yard, found)
        if rng.random() < 0.1:
            _undone(yard, found)
    found.touched = yard.touched
    found.ending = rng.choices(list(Ending), [88, 5, 5, 2])[0]
    if found.ending in (Ending.ROLLBACK, Ending.PREPARED_ROLLBACK):
        yard.restore(before)
    return found


def _undone(yard: Yard, transaction: Transaction) -> None:
    """Add statements that a savepoint rolls back."""
    before = yard.state()
    transaction.add(["SAVEPOINT s"], alters=False)
    _change(yard, transaction)
    if yard.rng.random() < 0.3:
        _alter(yard, transaction)
    undo = yard.rng.random() < 0.6
    transaction.add(["ROLLBACK TO s" if undo else "RELEASE s"], alters=False)
    if undo:
        yard.restore(before)


def _change(yard: Yard, transaction: Transaction) -> None:
    """Change rows of one table."""
    rng = yard.rng
    table = yard.pick(*yard.tables.values(), *shared_tables())
    assert table is not None
    if table.uid < 0:
        draw_from: Callable[[Yard, Table], Statements] = rng.choice([insert, update])
    elif rng.random() < 0.02:
        draw_from = large
    elif (table.poisoned and rng.random() < 0.2) or rng.random() < 0.01:
        draw_from = poison
    else:
        draw_from = some_change
    if not table.changeable and draw_from is not some_change:
        draw_from = insert
    transaction.add(draw_from(yard, table), alters=False)


def _alter(yard: Yard, transaction: Transaction) -> None:
    """Create, alter or drop one table, or a family of tables."""
    rng = yard.rng
    alone = yard.alone()
    roots = [table for table in yard.tables.values() if table.partitioned]
    if len(alone) < FEWEST:
        transaction.add(create(yard), alters=True)
        return
    makers: list[tuple[Callable[[], Statements], int]] = [
        (lambda: create(yard), 6 if len(alone) < MOST else 0),
        (lambda: keyless(yard), 1 if len(alone) < MOST else 0),
        (lambda: create_partitioned(yard), 3 if len(roots) < 2 else 0),
        (lambda: create_references(yard), 2 if len(yard.tables) < 2 * MOST else 0),
        (lambda: truncate_cascade(yard), 2),
        (lambda: inherit(yard), 1 if len(yard.tables) < 2 * MOST else 0),
        (lambda: rename_label(yard), 2),
        (lambda: _of_root(yard, roots), 12 if roots else 0),
        (lambda: _of_one(yard, alone), 40),
    ]
    [maker] = rng.choices([each for each, _ in makers], [weight for _, weight in makers])
    transaction.add(maker(), alters=True)


def _of_root(yard: Yard, roots: list[Table]) -> Statements:
    root = yard.pick(*roots)
    assert root is not None
    [step] = yard.rng.choices(list(OF_ROOTS), list(OF_ROOTS.values()))
    return step(yard, root)


def _of_one(yard: Yard, alone: list[Table]) -> Statements:
    table = yard.pick(*alone)
    assert table is not None
    [step] = yard.rng.choices(list(ALTERATIONS), list(ALTERATIONS.values()))
    return step(yard, table)
