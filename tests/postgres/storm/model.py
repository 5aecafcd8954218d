"""The tables of one session as drawn: columns and keys, but no rows.

The model never asks the server, so a seed reproduces the same steps.
"""

from __future__ import annotations

import random
from copy import deepcopy
from dataclasses import dataclass, field

SPAN = 1000
"""The number of keys in a partition."""
KEYS = 4 * SPAN


@dataclass(slots=True)
class Column:
    """A column outside of the key."""

    name: str
    kind: str
    required: bool = False

    @property
    def quoted(self) -> str:
        """The name, quoted for SQL."""
        return f'"{self.name}"'


@dataclass(slots=True)
class Table:
    """A table. Its key, if any, consists of ``id``, or of ``id`` and ``part``."""

    uid: int
    schema: str
    name: str
    columns: list[Column] = field(default_factory=list)
    key: tuple[str, ...] = ("id",)
    """Empty if the table has no primary key."""
    constraint: str = ""
    """The name of the primary key."""
    deferrable: bool = False
    identity: str = "DEFAULT"
    unlogged: bool = False
    partitioned: bool = False
    parent: int | None = None
    lowest: int = 1
    """The smallest ``id`` that the table accepts."""
    highest: int = KEYS
    references: int | None = None
    """The table that the column ``ref`` references."""
    poisoned: str | None = None
    inherits: int | None = None

    @property
    def sql(self) -> str:
        """The qualified name, quoted for SQL."""
        return f'{self.schema}."{self.name}"'

    @property
    def changeable(self) -> bool:
        """Whether the source accepts updates and deletes, published or not."""
        return self.identity == "FULL" or (
            self.identity == "DEFAULT" and bool(self.key) and not self.deferrable
        )


class Catalog:
    """The tables that only one session creates, alters and drops."""

    def __init__(self, number: int, seed: int) -> None:
        self.number = number
        self.rng = random.Random(f"{seed} {number}")
        self.tables: dict[int, Table] = {}
        self.touched: set[int] = set()
        """The changed tables by ``uid``, since the set was last cleared."""
        self.moods = [f"mood{at}" for at in range(3)]
        self._numbers = 0

    def number_of_its_own(self) -> int:
        """Return a number that is unique across all catalogs."""
        self._numbers += 1
        return self.number * 1_000_000 + self._numbers

    def new_name(self, prefix: str) -> str:
        """Return a name that was never used in this database."""
        return f"{prefix}{self.number_of_its_own()}"

    def add(self, table: Table) -> Table:
        """Add a table to the model."""
        self.tables[table.uid] = table
        self.touched.add(table.uid)
        return table

    def remove(self, table: Table) -> None:
        """Remove a table and its dependents from the model."""
        self.touched.add(table.uid)
        del self.tables[table.uid]

    def pick(self, *tables: Table) -> Table | None:
        """Draw one of the tables, or return None if the list is empty."""
        if not tables:
            return None
        found = self.rng.choice(tables)
        self.touched.add(found.uid)
        return found

    def parts(self, table: Table) -> list[Table]:
        return [each for each in self.tables.values() if each.parent == table.uid]

    def referring(self, table: Table) -> list[Table]:
        """Return the tables that reference a table."""
        return [each for each in self.tables.values() if each.references == table.uid]

    def bound(self, table: Table) -> bool:
        """Return whether a table belongs to a family, so that its changes affect other tables."""
        return (
            table.partitioned
            or table.parent is not None
            or table.references is not None
            or table.inherits is not None
            or bool(self.referring(table))
            or any(each.inherits == table.uid for each in self.tables.values())
        )

    def alone(self) -> list[Table]:
        """Return the tables that belong to no family."""
        return [table for table in self.tables.values() if not self.bound(table)]

    def state(self) -> tuple[dict[int, Table], list[str]]:
        """Return a copy of the tables, for :meth:`restore`."""
        return deepcopy(self.tables), list(self.moods)

    def restore(self, state: tuple[dict[int, Table], list[str]]) -> None:
        """Undo everything drawn since that state; numbers are not reused."""
        self.tables, self.moods = deepcopy(state[0]), list(state[1])
