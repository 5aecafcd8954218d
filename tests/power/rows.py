"""The rows that campaigns write, and the check that each is present once."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.flight as fl

TABLE = ("power", "rows")
SCHEMA = pa.schema({"w": pa.int64(), "n": pa.int64(), "part": pa.string()})
PARTS = 3
ERRORS = (pa.ArrowException, fl.FlightError, OSError)


def make_rows(writer: int, first: int, count: int) -> pa.RecordBatch:
    """Rows of a writer, numbered from ``first``, over all partitions in turn."""
    numbers = range(first, first + count)
    columns = [[writer] * count, list(numbers), [f"p{n % PARTS}" for n in numbers]]
    return pa.record_batch([pa.array(column) for column in columns], schema=SCHEMA)


def create_table(client: fl.FlightClient) -> None:
    """Create the campaign's table unless it exists."""
    body = {
        "namespace": TABLE[0],
        "table": TABLE[1],
        "schema": base64.b64encode(SCHEMA.serialize().to_pybytes()).decode(),
        "partition_by": ["identity(part)"],
    }
    list(client.do_action(fl.Action("create_table", json.dumps(body).encode())))


def metadata_of(writer: int, sequence: int, rows: int | None) -> bytes:
    """The metadata of a writer's batch, whose state is the number of its rows, if given."""
    told: dict[str, object] = {"sequence": sequence}
    if rows is not None:
        state = base64.b64encode(str(rows).encode()).decode()
        told["checkpoint"] = {"partition": f"w{writer}", "state": state}
    return json.dumps(told).encode()


def state_of(client: fl.FlightClient, writer: int) -> int | None:
    """The state of a writer; None if it has none."""
    body = {"namespace": TABLE[0], "table": TABLE[1], "partition": f"w{writer}"}
    [result] = client.do_action(fl.Action("checkpoint_get", json.dumps(body).encode()))
    state = json.loads(result.body.to_pybytes())["state"]
    return None if state is None else int(base64.b64decode(state))


def query_all(client: fl.FlightClient) -> pa.Table:
    """All rows that a daemon returns."""
    ticket = {"namespace": TABLE[0], "table": TABLE[1]}
    return client.do_get(fl.Ticket(json.dumps(ticket).encode())).read_all()


def by_writer(table: pa.Table, writers: int) -> list[list[int]]:
    """The row numbers of each writer, sorted."""
    found: list[list[int]] = [[] for _ in range(writers)]
    for writer, number in zip(table["w"].to_pylist(), table["n"].to_pylist(), strict=True):
        found[writer].append(number)
    return [sorted(numbers) for numbers in found]


def not_once(writer: int, numbers: Sequence[int]) -> list[str]:
    """The faults of a writer's numbers, which should be 0, 1, 2, …"""
    rows = len(numbers)
    if list(numbers) == list(range(rows)):
        return []
    twice = rows - len(set(numbers))
    return [f"writer {writer}: {rows} rows up to {max(numbers)}, {twice} twice"]
