"""Data files of every kind have the numbers that columns have in their table.

Files of pushes and compactions are tried with Spark, in tests/pushes and tests/spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from ingester.client import Client
from persist.manifest import Manifest
from persist.store import open_store
from persist.table import ABOVE, TableDefinition
from tests.drivers.column_numbers import check_numbers
from tests.drivers.daemon import Daemon
from tests.drivers.wire import Table


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("numbers") / "d"
    with Daemon.start(folder, persist__max_age="1h", manifest__refresh="10ms") as started:
        yield started


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    with Client(daemon.flight) as made:
        yield made


def manifest_of(daemon: Daemon, table: Table) -> Manifest:
    return Manifest(open_store(f"file://{daemon.data_dir / 'store'}"), *table)


def nested(first: int) -> pa.Table:
    ids = range(first, first + 3)
    return pa.table(
        {
            "id": pa.array(ids),
            "place": [{"x": i, "tags": ["a"]} for i in ids],
            "notes": pa.array(
                [[("k", [i])] for i in ids], pa.map_(pa.string(), pa.list_(pa.int8()))
            ),
        }
    )


def test_files_of_a_table_that_gets_columns_agree_about_their_numbers(
    client: Client, daemon: Daemon, table: Table
) -> None:
    manifest = manifest_of(daemon, table)
    for more in range(4):
        rows = nested(10 * more)
        for number in range(more):
            rows = rows.append_column(f"new{number}", [[[{"a": 1}]] * 3])
        client.write(*table, rows.select(rows.column_names[::-1]))
        client.persist(*table)
    assert check_numbers(manifest) == (4, 0)
    assert len(TableDefinition.of_state(manifest.load()).schema) == 6
    found = client.query(*table)
    assert sorted(found["id"].to_pylist()) == [10 * i + j for i in range(4) for j in range(3)]
    # Numbers are a matter of files: no reader sees them.
    assert not any(field.metadata for field in found.schema)
    assert not any(field.metadata for field in found.schema.field("place").type)


def test_rewritten_files_of_a_keyed_table_are_numbered_by_its_newest_columns(
    client: Client, daemon: Daemon, table: Table
) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", pa.string())])
    client.create_table(*table, schema, primary_key=["id"])
    manifest = manifest_of(daemon, table)
    for round in range(4):
        rows = {"id": [0, round], "v": ["x", "y"], f"c{round}": [[1], [2]]}
        client.write(*table, pa.table(rows))
        client.persist(*table)
        numbered, plain = check_numbers(manifest)
        assert numbered > 0
        assert plain == 0


def test_a_table_that_is_defined_again_numbers_its_columns_again(
    client: Client, daemon: Daemon, table: Table
) -> None:
    """Which numbers they get is known when the copy takes the table over, after its files."""

    def copied(rows: pa.Table) -> None:
        with client.copy(*table, ["id"]) as copy:
            copy.write(rows)
            copy.finish("source", b"state")

    copied(nested(0))
    assert check_numbers(manifest_of(daemon, table)) == (1, 0)
    copied(nested(0).select(["notes", "id"]))
    manifest = manifest_of(daemon, table)
    assert TableDefinition.of_state(manifest.load()).first_schema_id == 1 + ABOVE
    assert check_numbers(manifest) == (0, 1)
    client.write(*table, nested(7))
    client.persist(*table)
    assert check_numbers(manifest)[0] > 0
    assert sorted(client.query(*table)["id"].to_pylist()) == [0, 1, 2, 7, 8, 9]


def test_rows_of_a_file_with_numbers_make_a_table_with_its_own(
    client: Client, daemon: Daemon, table: Table, tmp_path: Path
) -> None:
    """A user reads one of our files and writes its rows to another table."""
    from pyarrow import parquet

    client.write(*table, nested(0))
    client.persist(*table)
    manifest = manifest_of(daemon, table)
    [path] = manifest.load().files
    with manifest.store.open(manifest.object_path(path)) as source:
        rows = parquet.read_table(source)
    other = (table[0], f"{table[1]}_other")
    client.write(*other, rows.select(["notes", "place"]))
    client.persist(*other)
    definition = TableDefinition.of_state(manifest_of(daemon, other).load())
    assert not any(field.metadata for field in definition.schema)
    assert check_numbers(manifest_of(daemon, other)) == (1, 0)
