"""The columns of a table that are compared, by its state and what the source has now.

Law of this file: pure. What a table here keeps is compared, and what the source has got since,
which has to be null there; what was left out on purpose is not.
"""

from __future__ import annotations

from typing import NamedTuple

from ingester.postgres.facts import ColumnFacts, TableFacts
from ingester.postgres.names import Names
from ingester.postgres.states import TableState


class ComparedColumn(NamedTuple):
    """A column that is compared, and what it is called here."""

    facts: ColumnFacts
    here: str
    nulls: bool


def compared_columns(state: TableState, facts: TableFacts, names: Names) -> list[ComparedColumn]:
    """The columns that are compared, those of the key first.

    A column that the source has got since the copy is among them; what was left out is not.
    """
    kept = {column.source: column for column in state.columns}
    old = {column.number for column in state.facts.columns}
    columns: list[ComparedColumn] = []
    for column in facts.columns:
        mine = kept.get(column.name)
        if mine is not None:
            columns.append(ComparedColumn(column, mine.name, mine.policy == "null"))
        elif column.number not in old and column.sent:
            here = names.column(facts.schema, facts.name, column.name)
            columns.append(ComparedColumn(column, here, False))
    by_name = {column.facts.name: column for column in columns}
    key = [by_name[name] for name in facts.key]
    return key + [column for column in columns if column not in key]
