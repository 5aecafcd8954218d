"""A table with many columns and sparse rows: absent values take no memory in the daemon.

With its nulls, each table here would take gigabytes, which is more than the daemons' limits.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.flight as fl
import pyarrow.parquet as pq
import pytest

from ingester.query.parts import PART_BYTES
from tests.drivers.daemon import Daemon, Launch
from tests.drivers.syncing import Source
from tests.drivers.wire import Table, create, delete, describe, persist, put, query, ticket

COLUMNS = 1_000
ROWS = 150_000
FIELDS = [pa.field(f"c{n}", pa.int64()) for n in range(COLUMNS - 200)]
FIELDS += [pa.field(f"s{n}", pa.string()) for n in range(150)]
FIELDS += [pa.field(f"n{n}", pa.struct([("x", pa.int64()), ("y", pa.string())])) for n in range(30)]
FIELDS += [pa.field(f"m{n}", pa.map_(pa.string(), pa.list_(pa.int32()))) for n in range(20)]
KEY = pa.field("k", pa.int64(), nullable=False)
TIME = pa.field("time", pa.timestamp("us"))
NAMESPACE = "sparse"
ADDRESS_SPACE_BYTES = 8 << 30
"""# A control group would protect the machine as well; this limit works everywhere."""
MOST_BYTES = 700 << 20
SETTINGS: dict[str, Any] = {"memory__limit": "512MiB", "persist__max_age": "1h"}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon whose memory no other test has grown."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Launch, "warm", False)
        started = Daemon.start(tmp_path_factory.mktemp("sparse") / "data", **SETTINGS)
    with started:
        _bound(started)
        yield started


def _bound(daemon: Daemon) -> None:
    resource.prlimit(daemon.pid, resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES,) * 2)


def _peak_bytes(daemon: Daemon) -> int:
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10


def _numbers(rows: int, seed: int) -> pa.Array:
    return pa.array(np.random.default_rng(seed).integers(0, 1 << 40, rows))


def _create(client: fl.FlightClient, name: str, fields: list[pa.Field], **more: Any) -> Table:
    table = (NAMESPACE, name)
    create(client, table, pa.schema(fields), **more)
    return table


def _first_parts(client: fl.FlightClient, table: Table, rows: int) -> None:
    """The first parts of an answer with all columns, which must not be larger than other parts."""
    found = 0
    for chunk in client.do_get(ticket(table, limit=rows)):
        assert pa.ipc.get_record_batch_size(chunk.data) <= PART_BYTES
        found += chunk.data.num_rows
    assert found == rows


def _files(daemon: Daemon, table: Table) -> list[Path]:
    return sorted(daemon.data_dir.glob(f"store/{table[0]}/{table[1]}/v1/data/**/*.parquet"))


def test_rows_of_one_column_go_all_ways(daemon: Daemon) -> None:
    values = _numbers(ROWS, 1)
    total = int(np.sum(values.to_numpy()))
    with fl.connect(daemon.flight) as client:
        table = _create(client, "one", FIELDS)
        put(client, table, pa.record_batch({"c1": values}))
        _first_parts(client, table, 500)
        persist(client, table)
        _first_parts(client, table, 500)
        assert int(np.sum(query(client, table, columns=["c1"])["c1"].to_numpy())) == total
        none = query(client, table, filter=[[["c5", ">", 3]], [["s5", "=", "x"]]])
        assert none.num_rows == 0
        nulls = query(client, table, columns=["c1", "n1", "m1"], filter=[[["c1", "<", 1 << 30]]])
        assert 0 < nulls.num_rows == nulls["n1"].null_count == nulls["m1"].null_count
    assert _peak_bytes(daemon) < MOST_BYTES
    [file] = _files(daemon, table)
    assert file.stat().st_size < 8 * values.nbytes
    # The columns of one file must not be taken for those of the table.
    assert pq.read_schema(file).names == [field.name for field in FIELDS]
    assert ds.dataset(file).to_table(columns=["c1", "s7"])["s7"].null_count == ROWS


def test_a_keyed_table_is_merged_without_what_is_absent(daemon: Daemon) -> None:
    rows = ROWS // 2
    keys = np.random.default_rng(2).permutation(rows)
    schema = pa.schema([KEY, pa.field("c1", pa.int64())])
    with fl.connect(daemon.flight) as client:
        table = _create(client, "keyed", [KEY, *FIELDS], primary_key=["k"])
        first = pa.RecordBatch.from_arrays([pa.array(keys), pa.array(keys * 2)], schema=schema)
        put(client, table, first)
        persist(client, table)
        other = pa.schema([KEY, pa.field("c7", pa.int64())])
        upper = np.arange(rows // 2, rows)
        put(client, table, pa.RecordBatch.from_arrays([pa.array(upper)] * 2, schema=other))
        gone = pa.record_batch([pa.array(np.arange(0, rows, 3))], schema=pa.schema([KEY]))
        delete(client, table, gone)
        left = rows - gone.num_rows
        wanted = {"columns": ["k", "c1", "c7"]}
        merged = query(client, table, **wanted)
        _first_parts(client, table, 500)
        # In the middle of spilled rows, which are put into other files meanwhile.
        reader = client.do_get(ticket(table, **wanted))
        begun = [reader.read_chunk().data]
        tail = query(client, table, scope="buffered", columns=["k", "c7", "n1"])
        assert tail.num_rows >= len(upper) and tail.schema.names[-1] == "_op"
        assert tail["n1"].null_count == tail.num_rows
        persist(client, table)
        begun += [chunk.data for chunk in reader]
        after = query(client, table, **wanted)
    for found in (merged, pa.Table.from_batches(begun), after):
        assert found.num_rows == left
        by_key = found.sort_by("k")
        there = by_key["k"].to_numpy()
        assert not (there % 3 == 0).any()
        assert by_key["c1"].null_count == by_key["c7"].is_valid().to_numpy().sum()
        assert by_key["c1"].drop_null().to_pylist() == (there[there < rows // 2] * 2).tolist()
        assert by_key["c7"].drop_null().to_pylist() == there[there >= rows // 2].tolist()
    assert _peak_bytes(daemon) < MOST_BYTES


def test_replicated_rows_keep_what_they_have_and_nothing_else(daemon: Daemon) -> None:
    rows = 10_000
    keys = pa.array(np.arange(rows))
    none = pa.nulls(rows, pa.int64())
    with fl.connect(daemon.flight) as client:
        table = _create(client, "replicated", [KEY, *FIELDS], primary_key=["k"])
        source = Source(client, NAMESPACE, "sparse-source")
        for sequence, (name, old) in enumerate([("c1", none), ("c2", keys)], 1):
            said = [("old_pk", "k"), ("new_pk", "k"), ("value", name)]
            columns = [{"role": role, "name": of} for role, of in said]
            batch = pa.record_batch([old, keys, keys], names=["0", "1", "2"])
            answer = source.raw(
                "replicated", columns, batch, begin=True, last=True, sequence=sequence
            )
            assert answer["accepted"], answer
        # 8 bytes for each key, two values, and the delete marker.
        assert describe(client, table)["buffered"]["bytes"] < 2 * 40 * rows
        found = query(client, table, columns=["k", "c1", "c2", "c3"]).sort_by("k")
    for name in ("k", "c1", "c2"):
        assert found[name].to_pylist() == keys.to_pylist()
    assert found["c3"].null_count == rows
    assert _peak_bytes(daemon) < MOST_BYTES


def test_batches_that_each_have_another_column_are_persisted(daemon: Daemon) -> None:
    """Sorted by time, the batches interleave, and lie in two partitions."""
    count, rows = 80, 2_000
    with fl.connect(daemon.flight) as client:
        table = _create(client, "mixed", [TIME, *FIELDS], partition_by=["day(time)"])
        for n in range(count):
            times = _numbers(rows, n).to_numpy() % (2 * 86_400_000_000)
            values = pa.array(np.arange(rows) + n)
            batch = {"time": pa.array(times, TIME.type), f"c{n}": values, f"c{n + 300}": values}
            put(client, table, pa.record_batch(batch))
        _first_parts(client, table, 500)
        persist(client, table)
        _first_parts(client, table, 500)
        for n in (0, 7, count - 1):
            found = query(client, table, filter=[[[f"c{n}", "is not null"]]], columns=[f"c{n}"])
            assert sorted(found[f"c{n}"].to_pylist()) == list(range(n, n + rows))
    assert len(_files(daemon, table)) == 2
    assert _peak_bytes(daemon) < MOST_BYTES


def test_rows_of_one_column_survive_a_kill_and_can_be_adopted(tmp_path: Path) -> None:
    batch = pa.record_batch({"c1": _numbers(ROWS, 1)})
    with Daemon.start(tmp_path / "data", **SETTINGS) as daemon:
        with fl.connect(daemon.flight) as client:
            tables = [_create(client, name, FIELDS) for name in ("replayed", "adopted")]
            put(client, tables[0], batch)
        daemon.kill()
        with daemon.again() as again, fl.connect(again.flight) as client:
            _bound(again)
            persist(client, tables[0])
            found = query(client, tables[0], columns=["c1", "c2"])
            assert found["c2"].null_count == found.num_rows == ROWS
            assert sorted(found["c1"].to_pylist()) == sorted(batch["c1"].to_pylist())
            assert _peak_bytes(again) < MOST_BYTES
            put(client, tables[1], batch)
            again.kill()
    adopt = [sys.executable, "-m", "ingester", "wal", "adopt", str(daemon.data_dir), "--json"]
    done = subprocess.run(
        [*adopt, "--store", f"file://{daemon.data_dir}/store"],
        check=True,
        capture_output=True,
        # The code alone maps some address space.
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2 << 30,) * 2),
    )
    rows = {each["table"]: each["rows"] for each in json.loads(done.stdout)["tables"]}
    assert rows == {"adopted": ROWS}
