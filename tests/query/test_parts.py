"""The schema metadata and the parts of an answer: daemon, sequence, partition, sizes."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.flight as fl

from tests.drivers.daemon import Daemon
from tests.drivers.wire import Table, chunks, events, numbers, persist, put, query

PART_BYTES = 256 * 1024


def test_the_schema_says_who_answered_and_for_when(
    client: fl.FlightClient, shared: Daemon, table: Table
) -> None:
    (answer,) = put(client, table, numbers(0, 1))
    metadata = {k.decode(): v.decode() for k, v in query(client, table).schema.metadata.items()}
    assert set(metadata) == {
        "ingester_id",
        "incarnation",
        "epoch",
        "snapshot_sequence",
        "manifest_version",
        "table_version",
        "store",
    }
    for name in ("ingester_id", "incarnation"):
        assert metadata[name] == shared.ready[name]
    assert int(metadata["epoch"]) == shared.ready["epoch"] == answer["epoch"]
    assert int(metadata["snapshot_sequence"]) >= answer["sequence"]
    version = persist(client, table)
    after = query(client, table).schema.metadata
    assert int(after[b"manifest_version"]) == version > int(metadata["manifest_version"])


def test_each_part_says_its_partition_and_its_source(client: fl.FlightClient, table: Table) -> None:
    put(client, table, events(0, 20, days=2))
    persist(client, table)
    put(client, table, events(20, 20, days=2))
    seen = {
        (metadata["partition"], metadata["source"]): sorted(batch["i"].to_pylist())
        for batch, metadata in chunks(client, table)
        if set(metadata) == {"partition", "source"}
    }
    assert seen == {
        (f"time_day=2026-11-{21 + day}", source): list(range(start + day, start + 20, 2))
        for source, start in (("file", 0), ("buffer", 20))
        for day in (0, 1)
    }


def test_an_unpartitioned_table_has_an_empty_partition_name(
    client: fl.FlightClient, table: Table
) -> None:
    put(client, table, numbers(0, 1))
    assert [metadata["partition"] for _, metadata in chunks(client, table)] == [""]


def test_no_part_is_larger_than_256_kib_unless_it_is_one_row(
    client: fl.FlightClient, table: Table
) -> None:
    texts = pa.array(["x" * (1 + i * 37 % 4000) for i in range(3000)])
    put(client, table, numbers(0, 3000, s=texts))
    put(client, table, numbers(3000, 1, s=pa.array(["y" * 1_000_000])))
    put(client, table, numbers(3001, 200_000, s=pa.array([""] * 200_000)))
    for _ in range(2):
        sizes = [(batch.nbytes, batch.num_rows) for batch, _ in chunks(client, table)]
        assert [size for size in sizes if size[0] > PART_BYTES and size[1] > 1] == []
        assert sum(count for _, count in sizes) == 203_001
        assert len(sizes) < 100  # parts are not needlessly small either
        persist(client, table)
