"""Runs the tasks of a rewrite on Spark's executors: one Spark task for each group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import structs
from pyspark.sql import SparkSession

from ingester.spark.read.arrow_scan import parallelism
from ingester.spark.read.columns import spark_schema
from persist.compaction import FileGroup, RewriteTask, Rewritten
from persist.manifest import Add
from persist.partitioning import PartitionValueTooLong
from persist.store import open_store

RESULT = pa.schema(
    [
        pa.field("number", pa.int64()),
        pa.field("adds", pa.binary()),
        pa.field("refused", pa.string()),
    ]
)
"""Result of a group: its new files, or the reason for none."""
_encode = msgspec.msgpack.Encoder().encode
_decode_adds = msgspec.msgpack.Decoder(list[Add]).decode


@dataclass(frozen=True, slots=True)
class SparkRunner:
    """A :data:`persist.compaction.run.Runner`."""

    spark: SparkSession
    url: str
    store_options: dict[str, Any]

    def __call__(self, task: RewriteTask, groups: Sequence[FileGroup]) -> list[Rewritten]:
        """Rewrite each group in a Spark task, which holds all of its rows."""
        if not groups:
            return []
        tasks = len(groups) if len(groups) < 10_000 else parallelism(self.spark) * 100
        numbers = self.spark.range(0, len(groups), 1, numPartitions=tasks)
        run = _on_executor(task, self.url, self.store_options, groups)
        found = numbers.mapInArrow(run, spark_schema(list(RESULT))).collect()
        return [
            Rewritten(groups[row.number], _decode_adds(bytes(row.adds)), row.refused)
            for row in found
        ]


def _on_executor(
    task: RewriteTask, url: str, store_options: dict[str, Any], groups: Sequence[FileGroup]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for ``mapInArrow`` over the numbers of groups. It is pickled."""
    # Without statistics, which executors do not need and which make up most of the size.
    light = [
        FileGroup(group.partition, tuple(structs.replace(add, stats={}) for add in group.files))
        for group in groups
    ]

    def run(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        store = open_store(url, **store_options)
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                try:
                    yield _result(number, task.run(store, light[number]))
                except PartitionValueTooLong as exc:
                    yield _result(number, [], str(exc))

    return run


def _result(number: int, adds: list[Add], refused: str | None = None) -> pa.RecordBatch:
    """Encode a group's result. Not in the closure, which is pickled: an encoder cannot be."""
    columns = [
        pa.array([number], pa.int64()),
        pa.array([_encode(adds)], pa.binary()),
        pa.array([refused], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RESULT)
