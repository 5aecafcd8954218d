"""Every type, with its extremes, comes through every entrance of a real daemon as it was sent.

The text formats are in ``tests/cli/test_round_trip.py``, PostgreSQL's types in
``tests/postgres/test_kinds.py``, Spark's entrances in ``tests/spark/test_every_entrance.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from ingester.cli.exits import CommandFailed
from ingester.client import Client, InvalidRequest, SyncColumn
from tests.cli.conftest import run_command
from tests.drivers.all_types import all_types, check_same
from tests.drivers.daemon import Daemon
from tests.drivers.wire import Table, put
from tests.write.transform.acme import MODULE

Entrance = Callable[[Daemon, Client, Table, pa.RecordBatch], None]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("entrances")
    with Daemon.start(folder / "data", transform__allowed=MODULE) as started:
        yield started


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    with Client(daemon.flight) as client:
        yield client


def _wire(daemon: Daemon, client: Client, table: Table, rows: pa.RecordBatch) -> None:
    with fl.connect(daemon.flight) as wire:
        put(wire, table, rows)


def _write(daemon: Daemon, client: Client, table: Table, rows: pa.RecordBatch) -> None:
    client.write(*table, rows)


def _writer(daemon: Daemon, client: Client, table: Table, rows: pa.RecordBatch) -> None:
    with client.writer(*table, rows.schema) as writer:
        writer.write(rows)


def _sync(daemon: Daemon, client: Client, table: Table, rows: pa.RecordBatch) -> None:
    names = rows.schema.names[1:]
    columns = [SyncColumn("old_pk", "n"), SyncColumn("new_pk", "n")]
    columns += [SyncColumn("value", name) for name in names]
    fields = [pa.field(f"c{at}", kind) for at, kind in enumerate([pa.int64(), *rows.schema.types])]
    arrays = [pa.nulls(rows.num_rows, pa.int64()), *rows.columns]
    message = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
    stream = client.sync(table[0], f"source of {table[1]}")
    stream.standing()
    stream.send(table[1], columns, message, begin=True, sequence=1)


def _copy(daemon: Daemon, client: Client, table: Table, rows: pa.RecordBatch) -> None:
    with client.copy(*table, ["n"]) as copy:
        copy.write(rows)
        copy.finish("source", b"")


def _file(kind: str) -> Entrance:
    def write(daemon: Daemon, client: Client, table: Table, rows: pa.RecordBatch) -> None:
        path = daemon.data_dir.parent / f"{table[1]}.{kind}"
        client.write(table[0], f"{table[1]}-source", rows)
        done = run_command(
            *("query", table[0], f"{table[1]}-source", "--format", kind, "--output", path),
            cwd=path.parent,
            endpoint=daemon.flight,
        )
        assert done.returncode == 0, done.stderr
        done = run_command("write", *table, path, cwd=path.parent, endpoint=daemon.flight)
        if done.returncode:
            raise CommandFailed(done.stderr.decode())

    return write


PLAIN: dict[str, Entrance] = {"wire": _wire, "write": _write, "writer": _writer}
FILES = {kind: _file(kind) for kind in ("csv", "jsonl", "arrow", "parquet")}
KEYED: dict[str, Entrance] = {"sync": _sync, "copy": _copy}
ALL = {**PLAIN, **FILES, **KEYED, "transformer": _write}
CASES = [(name, True) for name in (*PLAIN, *KEYED)]
CASES += [(name, False) for name in (*PLAIN, "transformer")]


@pytest.mark.parametrize("unit", ["us", "ns"])
@pytest.mark.parametrize(("entrance", "keyed"), CASES)
def test_every_type_with_its_extremes_is_the_same_in_buffer_and_file(
    daemon: Daemon,
    client: Client,
    table: Table,
    entrance: str,
    unit: Literal["us", "ns"],
    keyed: bool,
) -> None:
    [rows] = all_types(unit).combine_chunks().to_batches()
    key = ["n"] if keyed else []
    transformers = [f"{MODULE}:MadeAgain"] if entrance == "transformer" else []
    client.create_table(
        *table, rows.schema, primary_key=key, timestamp_unit=unit, transformers=transformers
    )
    ALL[entrance](daemon, client, table, rows)
    for _ in ("buffer", "file"):
        check_same(client.query(*table), pa.Table.from_batches([rows]))
        client.persist(*table)


REQUIRED = pa.schema(
    [pa.field("n", pa.int64(), nullable=False), pa.field("v", pa.float64(), nullable=False)]
)
WITH_NULL = pa.record_batch({"n": [1, 2], "v": pa.array([1.0, None])})
WITHOUT = pa.record_batch({"n": [1, 2]})


@pytest.mark.parametrize("rows", [WITH_NULL, WITHOUT], ids=["null", "missing"])
@pytest.mark.parametrize(
    ("entrance", "keyed"),
    [
        *((name, keyed) for name in (*PLAIN, *FILES) for keyed in (False, True)),
        ("sync", True),
        ("transformer", False),
    ],
)
def test_null_in_a_required_column_is_refused(
    daemon: Daemon, client: Client, table: Table, entrance: str, rows: pa.RecordBatch, keyed: bool
) -> None:
    transformers = []
    if entrance == "transformer":
        transformers, rows = [f"{MODULE}:Empties"], pa.record_batch({"n": [1], "v": [1.0]})
    key = ["n"] if keyed else []
    client.create_table(*table, REQUIRED, primary_key=key, transformers=transformers)
    with pytest.raises((InvalidRequest, pa.ArrowInvalid, CommandFailed), match="column 'v'"):
        ALL[entrance](daemon, client, table, rows)
    assert client.query(*table).num_rows == 0


def test_a_copy_makes_a_required_column_nullable(
    client: Client, daemon: Daemon, table: Table
) -> None:
    """A copy defines the table again, as it is at its source."""
    client.create_table(*table, REQUIRED, primary_key=["n"])
    _copy(daemon, client, table, WITH_NULL)
    assert client.schema(*table).field("v").nullable
    for _ in ("file", "file and buffer"):
        found = client.query(*table)
        assert found.schema.field("v").nullable
        assert found.sort_by("n")["v"].to_pylist() == [1.0, None]
        client.write(*table, WITH_NULL)
