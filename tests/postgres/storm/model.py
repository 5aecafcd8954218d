"""The tables of one session as drawn: columns and keys, but no rows.

It never asks the server, so a seed reproduces the same steps.
"""

from __future__ import annotations

import random
from copy import deepcopy
from dataclasses import dataclass, field

SPAN = 1000
"""Keys of a partition."""
KEYS = 4 * SPAN


@dataclass(slots=True)
class Column:
    """A column that is not of the key."""

    name: str
    kind: str
    required: bool = False

    @property
    def quoted(self) -> str:
        """As SQL has it."""
        return f'"{self.name}"'


@dataclass(slots=True)
class Table:
    """A table. Its key is always (a part of) ``id`` and ``part``, if it has one."""

    uid: int
    schema: str
    name: str
    columns: list[Column] = field(default_factory=list)
    key: tuple[str, ...] = ("id",)
    """Empty: it has no primary key."""
    constraint: str = ""
    """The primary key's name."""
    deferrable: bool = False
    identity: str = "DEFAULT"
    unlogged: bool = False
    partitioned: bool = False
    parent: int | None = None
    lowest: int = 1
    """The smallest ``id`` that belongs in it."""
    highest: int = KEYS
    references: int | None = None
    """The table that its column ``ref`` refers to."""
    poisoned: str | None = None
    inherits: int | None = None

    @property
    def sql(self) -> str:
        """Its name as SQL has it."""
        return f'{self.schema}."{self.name}"'

    @property
    def changeable(self) -> bool:
        """Whether updates and deletes pass at the source, published or not."""
        return self.identity == "FULL" or (
            self.identity == "DEFAULT" and bool(self.key) and not self.deferrable
        )


class Yard:
    """The tables that one session alone creates, alters and drops."""

    def __init__(self, number: int, seed: int) -> None:
        self.number = number
        self.rng = random.Random(f"{seed} {number}")
        self.tables: dict[int, Table] = {}
        self.touched: set[int] = set()
        """By ``uid``, since somebody last emptied it."""
        self.moods = [f"mood{at}" for at in range(3)]
        self._numbers = 0

    def number_of_its_own(self) -> int:
        """A number that nothing else has, in any yard."""
        self._numbers += 1
        return self.number * 1_000_000 + self._numbers

    def new_name(self, prefix: str) -> str:
        """A name that was never given in this database."""
        return f"{prefix}{self.number_of_its_own()}"

    def add(self, table: Table) -> Table:
        """Make it known."""
        self.tables[table.uid] = table
        self.touched.add(table.uid)
        return table

    def remove(self, table: Table) -> None:
        """Forget it, and what hangs on it."""
        self.touched.add(table.uid)
        del self.tables[table.uid]

    def pick(self, *tables: Table) -> Table | None:
        """One of them, if there are any."""
        if not tables:
            return None
        found = self.rng.choice(tables)
        self.touched.add(found.uid)
        return found

    def parts(self, table: Table) -> list[Table]:
        """The partitions of a table."""
        return [each for each in self.tables.values() if each.parent == table.uid]

    def referring(self, table: Table) -> list[Table]:
        """The tables that refer to a table."""
        return [each for each in self.tables.values() if each.references == table.uid]

    def bound(self, table: Table) -> bool:
        """Whether it is of a family: a change of it changes others."""
        return (
            table.partitioned
            or table.parent is not None
            or table.references is not None
            or table.inherits is not None
            or bool(self.referring(table))
            or any(each.inherits == table.uid for each in self.tables.values())
        )

    def alone(self) -> list[Table]:
        """The tables that are of no family."""
        return [table for table in self.tables.values() if not self.bound(table)]

    def state(self) -> tuple[dict[int, Table], list[str]]:
        """The tables as they are, for :meth:`restore`."""
        return deepcopy(self.tables), list(self.moods)

    def restore(self, state: tuple[dict[int, Table], list[str]]) -> None:
        """Take back what was drawn since then; numbers are not given again."""
        self.tables, self.moods = deepcopy(state[0]), list(state[1])
