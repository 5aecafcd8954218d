"""Wide schemas are compared in a thread; the answer is for the table's current definition."""

from __future__ import annotations

import itertools
import threading

import pyarrow as pa
import pytest
import trio

from ingester.buffer import TableBuffer
from ingester.schema import Normaliser
from ingester.schema.definition import automatic_definition, widened
from ingester.tables.catalog import WIDE, WideSchemas
from ingester.write.plan import Plans
from persist.manifest import TableState, apply
from persist.table import TableDefinition


def schema(columns: int) -> pa.Schema:
    return pa.schema([(f"column_{n}", pa.float64()) for n in range(columns)])


def table_of(definition: TableDefinition) -> TableBuffer:
    return TableBuffer("ns", "t", apply(TableState(), definition.actions()))


@pytest.mark.parametrize(("columns", "beside"), [(WIDE, False), (WIDE + 1, True)])
def test_a_wide_schema_is_not_for_the_loop(columns: int, beside: bool) -> None:
    wide, loop = WideSchemas(), threading.get_ident()
    found = trio.run(wide.work, schema(columns), threading.get_ident)
    assert (found != loop) is beside


def test_the_answer_is_of_the_table_that_there_is_on_return() -> None:
    sent, first = schema(WIDE + 1), automatic_definition(schema(WIDE))
    table, asked = table_of(first), []

    def look(definition: TableDefinition) -> int:
        asked.append(definition.schema_id)
        if len(asked) == 1:  # another stream adds the column meanwhile
            wider = widened(definition, sent)
            table.install(apply(table.state, [wider.schema_action()]))
        return len(definition.schema)

    assert trio.run(WideSchemas().of_table, table, sent, look) == WIDE + 1
    assert asked == [first.schema_id, first.schema_id + 1]
    assert trio.run(WideSchemas().missing, table, sent) == []


def test_a_plan_is_of_the_definition_that_it_is_asked_for() -> None:
    """A plan made in the thread is discarded when the table has changed since."""
    sent, plans = schema(2), Plans(itertools.count(1))
    before = automatic_definition(schema(1))
    table, now = table_of(before), widened(before, sent)
    stale, made = Normaliser(before, sent), Normaliser(now, sent)
    assert not plans.has(table, now, sent)
    plan = plans.get(table, now, sent, Normaliser, stale)
    assert plan.normaliser is not stale and plan.normaliser.schema == sent
    assert plans.has(table, now, sent)
    assert plans.get(table, now, sent, Normaliser, made) is plan
