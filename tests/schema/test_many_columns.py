"""The cost per column does not grow with the number of columns."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest

from ingester.errors import BadRequest
from ingester.schema import Normaliser
from ingester.schema.definition import automatic_definition, widened
from ingester.schema.limits import LARGEST, ShapeLimits, check_schema, check_sent


def cost_s(columns: int) -> float:
    """Processor time of the first batch of a table, and of one that widens it."""
    sent = pa.schema([(f"column_{n}", pa.float64()) for n in range(columns)])
    half = pa.schema(list(sent)[::2])
    found = []
    for _ in range(3):
        began = time.process_time()
        check_schema("the schema", sent, LARGEST)
        Normaliser(widened(automatic_definition(half), sent), sent)
        found.append(time.process_time() - began)
    return min(found)


def test_eight_times_the_columns_cost_some_eight_times_as_much() -> None:
    """The cost was once quadratic: 27 s for 10,000 columns, 15 of them in the event loop."""
    assert cost_s(8_000) < 20 * cost_s(1_000)


@pytest.mark.parametrize("kind", ["dictionary", "extension", "list"])
def test_fields_inside_any_kind_of_type_count(kind: str) -> None:
    inner: pa.DataType = pa.struct([(f"f{n}", pa.int8()) for n in range(10_000)])
    outer = {
        "dictionary": lambda: pa.dictionary(pa.int8(), inner),
        "extension": lambda: pa.opaque(inner, "t", "v"),
        "list": lambda: pa.list_(inner),
    }[kind]()
    with pytest.raises(BadRequest, match="more than 10000 fields"):
        check_schema("the schema", pa.schema([("a", outer)]), LARGEST)


@pytest.mark.parametrize("kind", [pa.null(), pa.dictionary(pa.int8(), pa.null())])
def test_columns_that_the_table_will_not_keep_do_not_count(kind: pa.DataType) -> None:
    sent = pa.schema([("i", pa.int64()), *((f"n{number}", kind) for number in range(30))])
    check_sent(("a", "b"), 0, sent, ShapeLimits(columns=20))
    typed = pa.schema([(field.name, pa.int64()) for field in sent])
    with pytest.raises(BadRequest, match="would have 31 columns"):
        check_sent(("a", "b"), 0, typed, ShapeLimits(columns=20))
