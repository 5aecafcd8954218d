"""``spark.read.format("ingester")``: a table as a Python data source, without a jar.

    from ingester.spark import register
    register(spark)
    spark.read.format("ingester").load("s3://lake/prefix/demo/flights").where("time > …")

A loaded DataFrame is a fixed set of rows: its version is chosen when the relation is made
(``load()``, ``CREATE TEMP VIEW``), whenever and however often it is read. If the caller gives a
schema, Spark makes the relation at the first read (``tests/spark/test_source.py``).

Spark plans queries in a separate Python process, so modules that only some queries need are
imported where they are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from ingester.spark.errors import (
    LOAD_AGAIN,
    RequestRefused,
    StreamUnsuitable,
    WriteRefused,
    is_refusal,
    plainly,
)
from ingester.spark.options import SourceOptions, require_options
from ingester.spark.source.batch import SourceRows, TableReader
from ingester.spark.versions import COUNTS_BARE_ROWS, NAME
from persist.manifest import TableState, VersionNotKept
from persist.table import TableDefinition

if TYPE_CHECKING:
    from ingester.spark.sink.writers import Sink

FORMAT = "ingester"


class IngesterSource(DataSource):
    """The data source; see :mod:`ingester.spark.options` for its options."""

    parallelism = 1
    _settled: tuple[int, int] | None = None
    _columns: tuple[str, ...] | None = None
    """All columns of that version, if the user did not select columns."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    @plainly
    def __init__(self, options: dict[str, str]) -> None:
        # Refused here, because Spark adds the tracebacks of pickle to an error of __getstate__.
        require_options(options)
        super().__init__(options)

    @plainly
    def __getstate__(self) -> dict[str, Any]:
        # Spark keeps the source as pickled when the relation is made, so choose the version now.
        # It makes a relation for a streaming write too, with options for writes.
        if not SourceOptions.only_for_writes(self.options):
            self._settle(SourceOptions.any(self.options))
        return self.__dict__

    @plainly
    def schema(self) -> StructType:
        """The requested columns at the requested version."""
        options, version = self._settle(SourceOptions.any(self.options))
        _, state = options.state(version)
        if options.counts:
            from ingester.spark.source.batch import SCHEMA

            return SCHEMA
        schema = SourceRows.all(state, options.columns, options.filter).schema()
        if options.columns is None:
            self._columns = tuple(schema.fieldNames())
        return schema

    @plainly
    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read of the columns of ``schema``."""
        options, version = self._settle(SourceOptions.read(self.options))
        try:
            manifest, state = options.state(version)
        except VersionNotKept as exc:
            raise RequestRefused(f"{exc}; {LOAD_AGAIN}") from exc
        tasks = options.number("tasks", 1) or self.parallelism
        if options.counts:
            from ingester.spark.source.batch import CountReader

            rows = SourceRows.all(state, (), options.filter)
            return CountReader(manifest, state, rows, options.store_options, tasks)
        rows = _rows(state, schema, options)
        return TableReader(manifest, state, rows, options.store_options, tasks)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A stream of the rows that versions add."""
        from ingester.spark.source.stream import RefusedStream

        try:
            return self._stream(schema)
        except Exception as exc:
            if not is_refusal(exc):
                raise
            # If this raises, Spark fails on the missing stream and does not show the reason.
            return RefusedStream(str(exc))

    def _stream(self, schema: StructType) -> DataSourceStreamReader:
        from ingester.spark.source.stream import NewColumns, TableStream

        options = SourceOptions.stream(self.options)
        manifest, head = options.existing()
        state = manifest.load(head)
        if TableDefinition.of_state(state).keyed:
            raise StreamUnsuitable(
                f"table {options.namespace}/{options.table} has a primary key: changes rewrite its"
                " files, so they are not a stream of rows; read versions of it instead"
            )
        tasks = options.number("tasks", 1) or self.parallelism
        rows = _rows(state, schema, options)
        new_columns = NewColumns(manifest, state, self._columns)
        return TableStream(manifest, rows, options, tasks, new_columns)

    @plainly
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch write of rows of this schema."""
        from ingester.spark.sink.writers import BatchWriter

        options, sink = _sink(self.options, schema, overwrite, stream=False)
        return BatchWriter(sink, options)

    @plainly
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """A streaming write of rows of this schema."""
        from ingester.spark.sink.writers import StreamWriter

        return StreamWriter(_sink(self.options, schema, overwrite, stream=True)[1])

    def _settle(self, options: SourceOptions) -> tuple[SourceOptions, int]:
        """The options with the generation set, and the manifest version; fixed at first use."""
        if self._settled is None:
            manifest = options.existing()[0]
            self._settled = (manifest.table_version, options.version(manifest))
        table_version, version = self._settled
        return options.at(table_version), version


def _rows(state: TableState, schema: StructType, options: SourceOptions) -> SourceRows:
    if not schema.fields and not COUNTS_BARE_ROWS:
        raise RequestRefused(
            f"option columns: {NAME} loses rows without columns, which needs 4.1; use the option"
            " count for the number of rows"
        )
    return SourceRows.of_schema(state, schema, options.filter)


def _sink(
    options: Mapping[str, str], schema: StructType, overwrite: bool, *, stream: bool
) -> tuple[SourceOptions, Sink]:
    from ingester.spark.sink.append import AppendSink
    from ingester.spark.sink.upsert import UpsertSink

    if overwrite:
        raise WriteRefused(
            "mode overwrite (or output mode complete) is not supported: writes only add rows; use"
            ' .mode("append"), or .outputMode("append") for a stream (append is the only mode;'
            " Spark's default, errorifexists, is not supported either)"
        )
    said = SourceOptions.write(options)
    manifest, head = said.existing()
    definition = TableDefinition.of_state(manifest.load(head))
    if definition.transformers:
        names = ", ".join(each.name for each in definition.transformers)
        raise WriteRefused(
            f"table {said.namespace}/{said.table} has transformers ({names}), which run in its"
            " daemons and not in Spark; write through a daemon, with ingester.client in"
            " foreachBatch or mapInArrow, or write to another table"
        )
    said = said.at(manifest.table_version)
    if definition.keyed:
        return said, UpsertSink(said, schema, definition, manifest.root)
    numbered = stream or said.txn()[1] is not None
    return said, AppendSink(said, schema, definition, manifest.root, numbered)
