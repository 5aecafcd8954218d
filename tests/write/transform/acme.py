"""Transformers that tests name as ``tests.write.transform.acme:Class``; a daemon runs them."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ingester.transform import SKIP, UNCHANGED, RowTransformer, Signal, Transformer

MODULE = __name__
NOT_A_CLASS = 7


def replaced(batch: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    at = batch.schema.get_field_index(name)
    return batch.set_column(at, batch.schema.field(at), column)


class Double(Transformer):
    """Doubles ``i``."""

    version = "1"

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch | Signal:
        return replaced(batch, "i", pc.multiply(batch["i"], 2))


class Evens(Transformer):
    """Keeps rows with an even ``i``; returns SKIP if no row is even, UNCHANGED if all are."""

    version = "1"

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch | Signal:
        even = pc.equal(pc.bit_wise_and(batch["i"], 1), 0)
        if not pc.any(even).as_py():
            return SKIP
        return UNCHANGED if pc.all(even).as_py() else batch.filter(even)


class Same(Transformer):
    """Changes nothing."""

    version = "1"

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch | Signal:
        return UNCHANGED


class Prints(Transformer):
    """Prints a long text."""

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch | Signal:
        print("printed " * 1024)
        return UNCHANGED


class Described(Transformer):
    """Removes ``raw`` (text) and adds its ``length``."""

    version = "1"

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        kept = [field for field in schema if field.name != "raw"]
        return pa.schema([*kept, pa.field("length", pa.int32())])

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch | Signal:
        lengths = pc.utf8_length(batch["raw"])
        return batch.drop_columns(["raw"]).append_column("length", lengths)


class Sums(Transformer):
    """Replaces all columns by their sum, ``i``."""

    version = "1"

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return pa.schema({"i": pa.int64()})

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch | Signal:
        return pa.record_batch({"i": [sum(row.values()) for row in batch.to_pylist()]})


class Squares(RowTransformer):
    """Drops odd rows, keeps rows of 10 and more, and squares the rest, row by row."""

    version = "1"

    def transform_row(self, row: dict[str, Any]) -> dict[str, Any] | Signal:
        if row["i"] % 2:
            return SKIP
        return UNCHANGED if row["i"] >= 10 else {**row, "i": row["i"] ** 2}


class Waits(Transformer):
    """Waits for the file named by the first ``until``, then returns UNCHANGED."""

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch | Signal:
        wait_for(batch["until"][0].as_py())
        return UNCHANGED


class WaitsToo(Waits):
    """A second class that waits."""


class SlowlyMade(Transformer):
    """Takes five seconds to construct."""

    def __init__(self) -> None:
        time.sleep(5)

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch | Signal:
        return UNCHANGED


class Numbered(Transformer):
    """Replaces ``i`` by the number of the batch within its stream."""

    def __init__(self) -> None:
        self.number = 0

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch | Signal:
        self.number += 1
        return replaced(batch, "i", pa.array([self.number] * batch.num_rows, pa.int64()))


class Closes(Transformer):
    """Reports its close in the file named by ``until``."""

    path = ""

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch | Signal:
        self.path = batch["until"][0].as_py()
        return UNCHANGED

    def close(self) -> None:
        if self.path:
            with Path(self.path).open("a") as file:
                file.write("closed\n")


class ClosesBadly(Transformer):
    """Raises on close."""

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch | Signal:
        return UNCHANGED

    def close(self) -> None:
        raise OSError("it does not close")


class Refuses(Transformer):
    """Refuses negative numbers."""

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch | Signal:
        if pc.min(batch["i"]).as_py() < 0:
            raise ValueError(f"negative: {pc.min(batch['i']).as_py()}")
        return UNCHANGED


class Exits(Transformer):
    """Raises SystemExit, which must not end the daemon."""

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch | Signal:
        raise SystemExit(3)


class Returns(Transformer):
    """Returns None, which is not a valid result."""

    answer: Any = None

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch | Signal:
        answer: pa.RecordBatch = self.answer
        return answer


class ReturnsTable(Returns):
    """Returns a table in place of a batch."""

    answer = pa.table({"i": [1]})


class ReturnsOthers(Returns):
    """Returns columns that its output schema does not have."""

    answer = pa.record_batch({"j": [1]})


class ReturnsRubbish(Returns):
    """Returns text that is not UTF-8."""

    answer = pa.record_batch(
        [
            pa.Array.from_buffers(
                pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")]
            )
        ],
        names=["until"],
    )


class Grows(Transformer):
    """Repeats each row a thousand times."""

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch | Signal:
        return batch.take(pa.array([i for i in range(batch.num_rows) for _ in range(1000)]))


class UnchangedThough(Described):
    """Declares other columns, and then returns UNCHANGED."""

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch | Signal:
        return UNCHANGED


class NoSchema(Double):
    """Returns a list where a schema is expected."""

    def output_schema(self, schema: pa.Schema) -> Any:
        return [field.name for field in schema]


class NoSuchColumn(Double):
    """Raises on the schema."""

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        raise KeyError("price")


class NotMade(Double):
    """Raises in its constructor."""

    def __init__(self) -> None:
        raise FileNotFoundError("model.bin")


class WantsArguments(Double):
    """Requires a constructor argument."""

    def __init__(self, path: str) -> None:
        self.path = path


class TakesNothing(Transformer):
    """Has a ``transform`` without the batch parameter."""

    def transform(self) -> Any:  # type: ignore[override]
        return UNCHANGED


class Asynchronous(Transformer):
    """Has a coroutine where a function is expected."""

    async def transform(self, batch: pa.RecordBatch) -> Any:
        await asyncio.sleep(0)


class Abstract(Transformer):
    """Has no ``transform``."""


class BadVersion(Double):
    """Has a version that is not a string."""

    version = 3  # type: ignore[assignment]


class Plain:
    """A class that does not derive from Transformer."""

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch


def wait_for(path: str) -> None:
    """Wait until this file exists."""
    while not Path(path).exists():
        time.sleep(0.005)


class MadeAgain(Transformer):
    """Returns a new batch of the same columns."""

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch | Signal:
        return pa.RecordBatch.from_arrays(batch.columns, schema=batch.schema)


class Empties(Transformer):
    """Makes ``v`` null."""

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch | Signal:
        return replaced(batch, "v", pa.nulls(batch.num_rows, batch["v"].type))
