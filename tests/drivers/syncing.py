"""A replication client with nothing but pyarrow; changes are Python tuples.

source = Source(client, "ns", "A") source.send("t", [(None, 1, {"v": 2.0})], sequence=17)       #
insert key 1 source.send("t", [(1, 2, {"v": KEEP}), (2, None, {"v": KEEP})])   # moved and
deleted
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from tests.drivers.wire import Json, command, query


class _Keep:
    def __repr__(self) -> str:
        return "KEEP"


KEEP = _Keep()
"""Stands for a value that the row keeps."""
Change = tuple[int | None, int | None, Mapping[str, Any]]
COLUMNS = {"v": pa.float64(), "s": pa.string()}
State = dict[int, tuple[float | None, str | None]]


def message(changes: Sequence[Change]) -> tuple[list[Json], pa.RecordBatch]:
    """The columns of a message and its batch; columns that no change names are left out."""
    names = [name for name in COLUMNS if any(name in values for _, _, values in changes)]
    columns = [{"role": role, "name": "id"} for role in ("old_pk", "new_pk")]
    arrays: list[pa.Array] = [
        pa.array([change[side] for change in changes], pa.int64()) for side in (0, 1)
    ]
    for name in names:
        cells = [values.get(name, KEEP) for _, _, values in changes]
        columns += [{"role": "value", "name": name}, {"role": "changed", "name": name}]
        arrays.append(pa.array([None if c is KEEP else c for c in cells], COLUMNS[name]))
        arrays.append(pa.array([c is not KEEP for c in cells]))
    # By position: the fields' names do not matter.
    batch = pa.record_batch(arrays, names=[f"c{n}" for n in range(len(arrays))])
    return columns, batch


def call(
    client: fl.FlightClient, fields: Json, batch: pa.RecordBatch, timeout_s: float | None = None
) -> Json:
    """One message and its answer."""
    options = fl.FlightCallOptions(timeout=timeout_s)
    writer, reader = client.do_put(command(type="sync", **fields), batch.schema, options)
    with writer:
        if batch.num_rows or len(batch.schema):
            writer.write_batch(batch)
        writer.done_writing()
        answer = reader.read()
    assert answer is not None
    said: Json = json.loads(answer.to_pybytes())
    return said


class Source:
    """One origin that writes to the tables of one namespace."""

    def __init__(self, client: fl.FlightClient, namespace: str, origin: str) -> None:
        self.client = client
        self.namespace = namespace
        self.origin = origin

    def send(self, table: str, changes: Sequence[Change], **fields: object) -> Json:
        """Send one message; ``sequence``, ``last`` and ``begin`` are those of the wire."""
        columns, batch = message(changes)
        return self.raw(table, columns, batch, **fields)

    def raw(self, table: str, columns: list[Json], batch: pa.RecordBatch, **fields: object) -> Json:
        """Send one message with arbitrary columns."""
        about = {"namespace": self.namespace, "table": table, "origin": self.origin}
        return call(self.client, {**about, "columns": columns, **fields}, batch)

    def ask(self, table: str = "any") -> Json:
        """The position of the origin."""
        return self.raw(table, [], pa.record_batch([], schema=pa.schema([])))

    def end(self, sequence: int, table: str = "any", **fields: object) -> Json:
        """End the open transaction with an empty message."""
        empty = pa.record_batch([], schema=pa.schema([]))
        return self.raw(table, [], empty, sequence=sequence, **fields)

    def standing(self) -> tuple[int | None, int | None]:
        """The positions (memory, durable)."""
        said = self.ask()
        return said["memory_sequence"], said["durable_sequence"]

    def state(self, table: str) -> State:
        """The table's rows by key."""
        return state(self.client, (self.namespace, table))


def state(client: fl.FlightClient, table: tuple[str, str], **fields: object) -> State:
    """Rows by key; columns that the table lacks are None."""
    found = query(client, table, **fields)
    rows = {row["id"]: (row.get("v"), row.get("s")) for row in found.to_pylist()}
    assert len(rows) == found.num_rows, "a key stands twice"
    return rows


def apply(rows: State, changes: Sequence[Change]) -> None:
    """Apply the same changes to a dictionary."""
    for old, new, values in changes:
        have = (None, None) if old is None else rows.pop(old, (None, None))
        if new is not None:
            v, s = values.get("v", KEEP), values.get("s", KEEP)
            rows[new] = (have[0] if v is KEEP else v, have[1] if s is KEEP else s)
