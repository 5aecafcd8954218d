"""One table version as a DataFrame: its files, and buffered rows merged into them.

Every source gives the columns of ``Columns.fields()`` in that order and with those types. Sources
are combined in this form, and then reduced to the requested columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ingester.spark.errors import ReaderUnsuitable
from ingester.spark.read import arrow_scan, native
from ingester.spark.read.columns import (
    OPERATION,
    Columns,
    asked_columns,
    quoted,
    restored,
    spark_schema,
)
from ingester.spark.read.filters import Pruning, condition, pruning, said
from ingester.spark.read.native import setting
from persist.exports import hadoop_url
from persist.manifest import Manifest, TableState
from persist.table import TableDefinition

Reader = Literal["auto", "native", "arrow"]


@dataclass(frozen=True, slots=True)
class TableScan:
    """Reads a table's files in this session."""

    spark: SparkSession
    manifest: Manifest
    store_options: Mapping[str, Any]
    reader: Reader

    def frame(
        self,
        state: TableState,
        tails: Sequence[pa.Table],
        names: Sequence[str] | None,
        filter_: str | None = None,
    ) -> DataFrame:
        """Files and buffered rows of one version.

        Args:
            tails: Buffered rows beyond the version; empty if only files are wanted.
            names: Columns of the answer; None for all.
        """
        definition = _with_new_columns(TableDefinition.of_state(state), tails)
        asked = asked_columns(definition, names)
        wanted = said(filter_, definition)
        needed = {*asked, *wanted.columns, *(definition.primary_key if tails else ())}
        data = tuple(name for name in definition.schema.names if name in needed)
        columns = Columns(definition, data)
        rows = self._files(state, pruning(wanted, columns))
        if tails and definition.keyed:
            rows = merged(self.spark, rows, _shaped(tails, columns), definition.primary_key)
        elif tails:
            rows = added(self.spark, rows, _shaped(tails, columns))
        if wanted.conjunctions:
            rows = rows.where(condition(wanted, columns))
        types = {field.name: field.type for field in definition.schema}
        return rows.select(
            *(restored(F.col(quoted(n)), types.get(n, pa.null())).alias(n) for n in asked)
        )

    def _files(self, state: TableState, needed: Pruning) -> DataFrame:
        columns = needed.columns
        adds = [add for _, add in sorted(state.files.items()) if needed.may_match(add)]
        if not adds:
            return self.spark.createDataFrame([], spark_schema(columns.fields()))
        store, root = self.manifest.store, self.manifest.root
        lies = {add.path: columns.definition.has_current_layout(add.spec_id) for add in adds}
        for_native = [add for add in adds if lies[add.path]] if self._native(store.url) else []
        frames = []
        if for_native:
            frames.append(
                native.read_files(
                    self.spark, f"{store.url}/{root}", for_native, columns, self.store_options
                )
            )
        if len(for_native) < len(adds):
            # Folders of an earlier partition spec lack today's partition columns.
            rest = [add for add in adds if not for_native or not lies[add.path]]
            frames.append(
                arrow_scan.read_files(
                    self.spark, store, root, rest, columns, self.store_options, needed.rows
                )
            )
        return frames[0] if len(frames) == 1 else frames[0].unionAll(frames[1])

    def _native(self, url: str) -> bool:
        if self.reader == "arrow":
            return False
        able = native.can_read(self.spark, url)
        if self.reader == "native" and not able:
            scheme = hadoop_url(url).partition("://")[0]
            raise ReaderUnsuitable(
                f"this Spark session has no file system for {scheme}://; start it with the"
                f' connector (for s3: {setting(self.spark)}), or use reader="arrow"'
            )
        return able


def _with_new_columns(definition: TableDefinition, tails: Sequence[pa.Table]) -> TableDefinition:
    """The table with the columns of buffered rows that are newer than the version."""
    schema = definition.schema
    for tail in tails:
        for field in tail.schema:
            if field.name != OPERATION and schema.get_field_index(field.name) < 0:
                schema = schema.append(field.with_nullable(True))
    return replace(definition, schema=schema)


def _shaped(tails: Sequence[pa.Table], columns: Columns) -> pa.Table:
    """Buffered rows with the columns of the files' rows, and ``_op`` in a keyed table."""
    fields = columns.fields()
    extra = [OPERATION] if columns.definition.keyed else []
    schema = pa.schema([*fields, *(pa.field(name, pa.string()) for name in extra)])
    parts = [columns.of_any(batch, extra) for tail in tails for batch in tail.to_batches()]
    return pa.Table.from_batches(parts, schema)


# Keys up to this size are sent to every executor, so that the files' rows are not shuffled.
_BROADCAST_BYTES = 32 * 1024 * 1024


def local_rows(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Rows in the driver's memory as a DataFrame with the same columns."""
    return spark.createDataFrame(table, spark_schema(list(table.schema)))


def added(spark: SparkSession, files: DataFrame, tail: pa.Table) -> DataFrame:
    """The rows of both. In a table without a primary key no row is in both."""
    return files if tail.num_rows == 0 else files.union(local_rows(spark, tail))


def merged(
    spark: SparkSession, files: DataFrame, tail: pa.Table, primary_key: Sequence[str]
) -> DataFrame:
    """The last state of each key: a buffered row replaces a file's, a buffered delete removes it.

    Args:
        tail: In write order, with a column ``_op``. The last row of a key counts.
    """
    if tail.num_rows == 0:
        return files
    tail = last_of_each_key(tail, primary_key)
    # Table columns never begin with '_', so these names are free.
    aliases = [f"_key_{index}" for index in range(len(primary_key))]
    keys = local_rows(spark, tail.select(list(primary_key)).rename_columns(aliases))
    if tail.nbytes <= _BROADCAST_BYTES:
        keys = F.broadcast(keys)
    same = [
        F.col(quoted(name)) == F.col(quoted(alias))
        for name, alias in zip(primary_key, aliases, strict=True)
    ]
    older = files.join(keys, same, "left_anti")
    kept = tail.filter(pc.equal(tail[OPERATION], "upsert")).drop_columns([OPERATION])
    return added(spark, older, kept)


def last_of_each_key(rows: pa.Table, primary_key: Sequence[str]) -> pa.Table:
    """The last row of each key, in row order."""
    numbers = pa.array(range(rows.num_rows), pa.int64())
    keys = rows.select(list(primary_key)).append_column("_row", numbers)
    last = keys.group_by(list(primary_key)).aggregate([("_row", "max")])["_row_max"]
    return rows.take(last.combine_chunks().sort())
