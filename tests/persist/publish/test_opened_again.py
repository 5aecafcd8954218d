"""A publisher that knows nothing continues over switches of the table version."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

from persist.partitioning import PartitionSpec
from persist.publish.format import FORMATS
from persist.publish.publisher import Publisher
from persist.store import open_store
from persist.table import TableDefinition
from tests.persist.publish.tables import SCHEMA, BuiltTable, sample


def published(table: BuiltTable) -> list[str | None]:
    """Publish with a new publisher; what went wrong in each format."""
    told = Publisher(table.store, "ns", table.table).publish(FORMATS, retain_s=1e6)
    return [one.refused or one.error for one in told]


def rows_read(folder: Path, definition: TableDefinition) -> list[int]:
    """The rows of the table by each format."""
    iceberg = StaticTable.from_metadata(str(folder)).scan().to_arrow()
    delta = DeltaTable(str(folder)).to_pyarrow_table()
    assert iceberg.schema.names == delta.schema.names == definition.schema.names
    return [len(iceberg), len(delta)]


@pytest.mark.parametrize("defined_again", [False, True])
def test_a_new_publisher_follows_a_table_that_was_replaced(
    defined_again: bool, tmp_path: Path
) -> None:
    table = BuiltTable(open_store(str(tmp_path)), SCHEMA)
    table.append(sample(0))
    assert published(table) == [None, None]
    table.append(sample(8))
    assert published(table) == [None, None]
    if defined_again:
        again = TableDefinition(SCHEMA.remove(3), PartitionSpec(()))
        table.switch(sample(100).drop_columns(["day"]), again)
    else:
        table.switch(sample(100))
    assert published(table) == [None, None]
    assert rows_read(tmp_path / "ns" / "t", table.definition) == [8, 8]


def test_a_zero_is_found_whatever_its_sign(tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.int64()), ("f", pa.float64())])
    table = BuiltTable(open_store(str(tmp_path)), schema, ["identity(n)"])
    table.append(pa.table({"n": [1, 2], "f": [0.0, -0.0]}, schema))
    assert published(table) == [None, None]
    adds = DeltaTable(str(tmp_path / "ns" / "t")).get_add_actions(flatten=True)
    bounds = pa.table(adds).select(["min.f", "max.f"]).to_pylist()
    assert [list(map(str, each.values())) for each in bounds] == 2 * [["-0.0", "0.0"]]
