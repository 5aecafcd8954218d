"""Datasets through which DuckDB reads rows of the daemon. Filters are not passed on yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

OpenScan = Callable[[list[str], "list[list[list[Any]]] | None"], Iterator[pa.RecordBatch]]


class _Scan:
    def __init__(self, schema: pa.Schema, batches: Callable[[], Iterator[pa.RecordBatch]]) -> None:
        self.projected_schema = schema
        self._batches = batches

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.projected_schema, self._batches())


class Source(ds.InMemoryDataset):  # type: ignore[misc]
    def __init__(self, schema: pa.Schema, open_scan: OpenScan) -> None:
        super().__init__(schema.empty_table())
        self._schema = schema
        self._open = open_scan

    def scanner(self, columns: list[str] | None = None, filter: Any = None, **options: Any) -> Any:
        columns = self._schema.names if columns is None else columns
        schema = pa.schema([self._schema.field(name) for name in columns])

        def batches() -> Iterator[pa.RecordBatch]:
            wanted = self._schema.names
            for batch in self._open(wanted, None):
                kept = batch if filter is None else batch.filter(filter)
                yield kept.select(columns)

        return _Scan(schema, batches)
