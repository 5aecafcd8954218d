"""A type that a table accepts can be written to files, with its most extreme values."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pyarrow.parquet as pq
import pytest
import trio
from hypothesis import given

from ingester.client import Client
from ingester.errors import BadRequest
from ingester.schema.align import Aligner
from ingester.schema.types import table_type
from ingester.tables.encodable import check_encodable, extremes
from persist.manifest import Manifest, Proposal, WriterIdentity, commit
from persist.parquet.encode import encode
from persist.partitioning import PartitionSpec
from persist.store import open_store
from persist.table import TableDefinition
from tests.drivers.daemon import Daemon
from tests.drivers.wire import Table, persist, put, rows
from tests.schema.test_types import types


@given(types)
def test_the_extremes_of_every_type_are_the_same_from_a_file(sent: pa.DataType) -> None:
    kind = table_type("v", sent, "us")
    values = extremes(kind)
    values.validate(full=True)
    assert values.type == kind
    assert values.null_count
    assert values.null_count < len(values) or kind == pa.null()
    found = pq.read_table(pa.BufferReader(encode([pa.table({"v": values})], {}))).column("v")
    # Parquet has its own names for the fields inside lists.
    assert str(found.cast(kind).combine_chunks()) == str(values)
    trio.run(check_encodable, [pa.field("v", kind)])


def test_a_type_that_cannot_be_encoded_is_refused_by_its_column() -> None:
    # Types are refused before; this one stands for a fault that a later pyarrow brings.
    fields = [pa.field("n", pa.int8()), pa.field("point", pa.struct([]))]
    for _ in range(2):
        with pytest.raises(BadRequest, match="column 'point': struct<> cannot be written to files"):
            trio.run(check_encodable, fields)


def test_many_columns_of_few_types_are_tried_once() -> None:
    kinds = [pa.decimal128(38, 3), pa.list_(pa.decimal128(38, 4))]
    fields = [pa.field(f"c{n}", kinds[n % 2]) for n in range(10_000)]
    trio.run(check_encodable, fields)


def test_a_decimal_with_more_places_than_digits_is_stored_with_as_many(
    tmp_path: Path, table: Table
) -> None:
    sent = pa.schema([("i", pa.int64()), ("v", pa.decimal128(3, 5))])
    least, most = Decimal("-0.00999"), Decimal("0.00999")
    with Daemon.start(tmp_path / "data") as daemon, fl.connect(daemon.flight) as client:
        whole = pa.array([Decimal(999), None, Decimal(-999)], pa.decimal128(3, 0))
        column = pa.Array.from_buffers(sent.field("v").type, 3, whole.buffers())
        put(client, table, pa.record_batch([pa.array([0, 1, 2]), column], schema=sent))
        persist(client, table)
        assert set(rows(client, table, "v")) == {most, None, least}
        assert daemon.terminate() == 0


def test_a_table_of_an_earlier_version_with_more_places_than_digits_is_written(
    tmp_path: Path, table: Table
) -> None:
    value = Decimal("-0.00999")
    narrow, struct = pa.decimal128(3, 5), pa.struct([("d", pa.list_(pa.decimal128(3, 5)))])
    map_type = pa.map_(pa.string(), narrow)
    schema = pa.schema([("i", pa.int64()), ("v", narrow), ("s", struct), ("m", map_type)])
    definition = TableDefinition(schema, PartitionSpec())
    with Daemon.start(tmp_path / "data") as daemon:
        store = open_store(f"file://{daemon.data_dir / 'store'}")
        writer = WriterIdentity("earlier", "version", 1)
        commit(Manifest(store, *table, 1), None, Proposal(definition.actions()), writer)
        with Client(daemon.flight) as here:
            kept = here.schema(*table)
            assert kept.field("v").type == pa.decimal128(5, 5)
            assert kept.names == schema.names
            row = {"i": 1, "v": value, "s": {"d": [value, None]}, "m": [("k", value)]}
            here.write(*table, pa.Table.from_pylist([row], kept))
            for _ in ("buffer", "file"):
                assert here.query(*table).to_pylist() == [row]
                here.persist(*table)
        assert daemon.terminate() == 0


def test_logged_rows_with_more_places_than_digits_are_aligned_with_the_table() -> None:
    whole = pa.array([Decimal(999), None], pa.decimal128(3, 0))
    logged = pa.Array.from_buffers(pa.decimal128(3, 5), 2, whole.buffers())
    made = Aligner(pa.schema([("v", pa.decimal128(5, 5))]))(pa.record_batch([logged], ["v"]))
    assert made.column(0).to_pylist() == [Decimal("0.00999"), None]
