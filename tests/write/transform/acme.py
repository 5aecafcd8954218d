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
    """``i`` becomes ``2 i``."""

    version = "1"

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch | Signal:
        return replaced(batch, "i", pc.multiply(batch["i"], 2))


class Evens(Transformer):
    """Only rows with an even ``i``; a batch that has none is skipped, one of these alone stays."""

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
    """Says what it does, at length."""

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch | Signal:
        print("printed " * 1024)
        return UNCHANGED


class Described(Transformer):
    """Takes ``raw`` (text) away and adds ``length``."""

    version = "1"

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        kept = [field for field in schema if field.name != "raw"]
        return pa.schema([*kept, pa.field("length", pa.int32())])

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch | Signal:
        lengths = pc.utf8_length(batch["raw"])
        return batch.drop_columns(["raw"]).append_column("length", lengths)


class Sums(Transformer):
    """Makes one column ``i`` of all, their sum."""

    version = "1"

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return pa.schema({"i": pa.int64()})

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch | Signal:
        return pa.record_batch({"i": [sum(row.values()) for row in batch.to_pylist()]})


class Squares(RowTransformer):
    """Row by row: odd ones go, 10 and more stay, of the others the square."""

    version = "1"

    def transform_row(self, row: dict[str, Any]) -> dict[str, Any] | Signal:
        if row["i"] % 2:
            return SKIP
        return UNCHANGED if row["i"] >= 10 else {**row, "i": row["i"] ** 2}


class Waits(Transformer):
    """Waits for the file that the first ``until`` names, then says UNCHANGED."""

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch | Signal:
        wait_for(batch["until"][0].as_py())
        return UNCHANGED


class WaitsToo(Waits):
    """Another class that waits."""


class SlowlyMade(Transformer):
    """Has a constructor that takes long."""

    def __init__(self) -> None:
        time.sleep(5)

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch | Signal:
        return UNCHANGED


class Numbered(Transformer):
    """Adds the number of the batch within its stream."""

    def __init__(self) -> None:
        self.number = 0

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch | Signal:
        self.number += 1
        return replaced(batch, "i", pa.array([self.number] * batch.num_rows, pa.int64()))


class Closes(Transformer):
    """Says in the file that ``until`` names that it was closed."""

    path = ""

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch | Signal:
        self.path = batch["until"][0].as_py()
        return UNCHANGED

    def close(self) -> None:
        if self.path:
            with Path(self.path).open("a") as file:
                file.write("closed\n")


class ClosesBadly(Transformer):
    """Fails to close."""

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
    """Would end the process, if anybody let it."""

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch | Signal:
        raise SystemExit(3)


class Returns(Transformer):
    """Returns what is no answer."""

    answer: Any = None

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch | Signal:
        answer: pa.RecordBatch = self.answer
        return answer


class ReturnsTable(Returns):
    """Returns a table in place of a batch."""

    answer = pa.table({"i": [1]})


class ReturnsOthers(Returns):
    """Returns columns that it has not said."""

    answer = pa.record_batch({"j": [1]})


class ReturnsRubbish(Returns):
    """Returns a text that is not UTF-8."""

    answer = pa.record_batch(
        [
            pa.Array.from_buffers(
                pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")]
            )
        ],
        names=["until"],
    )


class Grows(Transformer):
    """Makes each row a thousand."""

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch | Signal:
        return batch.take(pa.array([i for i in range(batch.num_rows) for _ in range(1000)]))


class UnchangedThough(Described):
    """Says other columns, and then UNCHANGED."""

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch | Signal:
        return UNCHANGED


class NoSchema(Double):
    """Gives no schema."""

    def output_schema(self, schema: pa.Schema) -> Any:
        return [field.name for field in schema]


class NoSuchColumn(Double):
    """Fails on the schema."""

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        raise KeyError("price")


class NotMade(Double):
    """Cannot be made."""

    def __init__(self) -> None:
        raise FileNotFoundError("model.bin")


class WantsArguments(Double):
    """Is made with an argument."""

    def __init__(self, path: str) -> None:
        self.path = path


class TakesNothing(Transformer):
    """Has a ``transform`` without a batch."""

    def transform(self) -> Any:  # type: ignore[override]
        return UNCHANGED


class Asynchronous(Transformer):
    """Has a coroutine in place of a function."""

    async def transform(self, batch: pa.RecordBatch) -> Any:
        await asyncio.sleep(0)


class Abstract(Transformer):
    """Has no ``transform``."""


class BadVersion(Double):
    """Has a version that is no text."""

    version = 3  # type: ignore[assignment]


class Plain:
    """Is no transformer at all."""

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch


def wait_for(path: str) -> None:
    """Return when there is a file of this name."""
    while not Path(path).exists():
        time.sleep(0.005)
