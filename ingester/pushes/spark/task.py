"""The rows of one task become files, which go to all regions at once. Runs on executors.

    rows ─▶ ``keys``: each key once ─▶ FileSink: encoded once ─▶ ``places``: put into each region

Law of this file: what a task has written is nobody's until the data of the push is committed, so an
attempt that fails, or a second one beside it, leaves garbage for clean-up and nothing else. The
answer of a task says of each file which regions have it, and how many rows came in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from ingester.pushes.spark.keys import each_key_once
from ingester.pushes.spark.places import Place, Places
from ingester.spark.errors import plainly_each
from ingester.spark.sink.data_files import TARGET_FILE_BYTES, FileSink
from persist.manifest import Add
from persist.table import TableDefinition

RESULT = pa.schema([pa.field("rows", pa.int64()), pa.field("file", pa.binary())])
"""One row for each file, without a number of rows; and one with the number of rows that came in."""


class WrittenFile(msgspec.Struct, frozen=True):
    """A file that a task has written.

    Attributes:
        taken: The regions that have it, each with the time by its store's clock.
    """

    add: Add
    taken: Mapping[str, str]


_encode = msgspec.msgpack.Encoder().encode
decode_file = msgspec.msgpack.Decoder(WrittenFile).decode


@dataclass(frozen=True, slots=True)
class WriteTask:
    """What executors need beside the rows; it is pickled."""

    places: tuple[Place, ...]
    definition: TableDefinition
    target_bytes: int = TARGET_FILE_BYTES

    def write(self, batches: Iterable[pa.RecordBatch]) -> tuple[int, list[WrittenFile]]:
        """Write all rows of a task, and return their number and the files.

        Raises:
            WriteRefused: A value that the table does not take, or a key that stands twice.
            StoreError: No region takes a file.
        """
        count = 0

        def counted() -> Iterator[pa.RecordBatch]:
            nonlocal count
            for batch in batches:
                count += batch.num_rows
                yield batch

        rows: Iterator[pa.RecordBatch] = counted()
        if self.definition.keyed:
            rows = each_key_once(rows, self.definition.primary_key)
        with Places(self.places) as places:
            sink = FileSink(places, "", self.definition, "push", "spark", self.target_bytes)
            adds = sink.write(rows)
            return count, [WrittenFile(add, places.taken[add.path]) for add in adds]

    def function(self) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        """Return what ``mapInArrow`` calls with the rows of a task."""

        @plainly_each
        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            rows, files = self.write(batches)
            yield _answer(rows, files)

        return run


def _answer(rows: int, files: list[WrittenFile]) -> pa.RecordBatch:
    """Encode a task's answer, apart from the closure: that is pickled, and no encoder can be."""
    counts = [rows, *([None] * len(files))]
    columns = [
        pa.array(counts, pa.int64()),
        pa.array([None, *(_encode(file) for file in files)], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RESULT)
