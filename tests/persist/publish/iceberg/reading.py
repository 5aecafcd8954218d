"""Published tables as pyiceberg reads them, compared with the model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import StaticTable

from persist.publish.format import Head
from persist.publish.iceberg import IcebergTable
from persist.publish.steps import Step
from persist.store import ObjectStore
from tests.persist.publish.tables import BuiltTable

LONG_S = 1e9
"""Keeps every snapshot."""


def iceberg(store: ObjectStore) -> IcebergTable:
    """A new publisher of the table of the tests."""
    return IcebergTable(store, "ns", "t")


def publish_each(table: IcebergTable, steps: Iterable[Step], retain_s: float = LONG_S) -> Head:
    """Publish each step by itself."""
    head = None
    for step in steps:
        head = table.publish([step], retain_s=retain_s)
    assert head is not None
    return head


def opened(location: str) -> StaticTable:
    """A published table, by the URL of its metadata file or its folder."""
    return StaticTable.from_metadata(location)


def comparable(table: pa.Table) -> list[str]:
    """The rows in any order; distinguishes 0.0 from -0.0."""
    return sorted(map(repr, table.to_pylist()))


def without_null_lists(rows: pa.Table) -> pa.Table:
    """The rows with empty lists of structs instead of null ones: pyiceberg 0.12 confuses them."""
    for place, field in enumerate(rows.schema):
        if pa.types.is_list(field.type) and pa.types.is_struct(field.type.value_type):
            lists = rows.column(field.name).combine_chunks()
            filled = pc.if_else(lists.is_valid(), lists, pa.scalar([], field.type))
            rows = rows.set_column(place, field, filled)
    return rows


def check_snapshot(location: str, number: int, built: BuiltTable, step: Step) -> None:
    """Compare one snapshot with the table at that step."""
    found = opened(location).scan(snapshot_id=number).to_arrow()
    wanted = built.rows(step)
    assert found.schema.names == wanted.schema.names
    found = found.cast(wanted.schema)
    assert comparable(without_null_lists(found)) == comparable(without_null_lists(wanted))


def check_all(location: str, built: BuiltTable) -> list[int]:
    """Compare all snapshots, and return their ids; the last one is current."""
    steps = {step.place.number: step for step in built.steps()}
    numbers = [each.snapshot_id for each in opened(location).snapshots()]
    for number in numbers:
        check_snapshot(location, number, built, steps[number])
    current: Any = opened(location).current_snapshot()
    assert current.snapshot_id == numbers[-1] == max(steps)
    return numbers
