"""Tables as DuckDB scans them: it asks a dataset for some columns of the rows that meet a filter.

DuckDB calls ``scanner(columns, filter)`` of a registered ``pyarrow.dataset.Dataset``, then
``to_reader()``, and pulls one batch after the other, from any of its threads but one at a time. It
does not check the filter again. None of this is documented, and all of it is pinned by
``tests/sql/worker/test_sources.py``::

    SELECT host FROM t WHERE v > 3    ─▶ scanner(["host"], v > 3)    ─▶ open_scan(["host"], terms)
                      … AND s.x = 1   ─▶ scanner(["host"], v > 3 and s.x == 1)
                                         open_scan(["host", "v", "s"], terms), then the expression
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset

from ingester.sql.worker.substrait import PushedFilter, columns_of, pushed_filter

Terms = list[list[list[Any]]]
OpenScan = Callable[[list[str], Terms | None], Iterator[pa.RecordBatch]]
"""Returns the rows that meet a ticket's filter, with these columns. The iterator is closed if it
has ``close``."""


class Source(pyarrow.dataset.InMemoryDataset):  # type: ignore[misc]
    """One table for DuckDB; registered by ``connection.register(name, source)``."""

    def __init__(self, schema: pa.Schema, open_scan: OpenScan, *, filters: bool = True) -> None:
        """Args:
        open_scan: called when the first batch of a scan is wanted, from any thread. DuckDB
            passes on the text of its errors.
        filters: whether ``open_scan`` filters; otherwise it is asked for all rows.
        """
        super().__init__(schema.empty_table())
        self._open = open_scan
        self._filters = filters

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: pyarrow.dataset.Expression | None = None,
        **_: Any,
    ) -> _Scan:
        """Return a scan that has not been opened.

        Args:
            columns: None for all of them.
            filter: what the rows must meet; None for all rows.
        """
        wanted = self.schema.names if columns is None else list(columns)
        return _Scan(self, wanted, filter)

    def batches(
        self, schema: pa.Schema, expression: pyarrow.dataset.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows that meet an expression, with exactly the columns of a schema."""
        pushed, columns = PushedFilter(None, True), schema.names
        if expression is not None:
            pushed = pushed_filter(expression, self.schema)
            pushed = pushed if self._filters else PushedFilter(None, False)
        if not pushed.exact:
            columns = list(dict.fromkeys([*columns, *columns_of(expression, self.schema)]))
        scan = self._open(columns, pushed.terms)
        try:
            for batch in scan:
                found = batch if pushed.exact else batch.filter(expression)
                yield _as(schema, found.select(schema.names))
        finally:
            close = getattr(scan, "close", None)
            if close is not None:
                close()


class _Scan:
    """What ``scanner`` returns: as much of ``pyarrow.dataset.Scanner`` as DuckDB uses."""

    def __init__(
        self,
        source: Source,
        columns: Sequence[str],
        expression: pyarrow.dataset.Expression | None,
    ) -> None:
        self.projected_schema = pa.schema([source.schema.field(name) for name in columns])
        self._source = source
        self._expression = expression

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows. The scan ends with the last batch, or when the reader is dropped."""
        batches = self._source.batches(self.projected_schema, self._expression)
        return pa.RecordBatchReader.from_batches(self.projected_schema, batches)


def _as(schema: pa.Schema, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch if its columns have the schema's types: DuckDB reads any bytes as these."""
    if batch.schema.types != schema.types:
        raise TypeError(f"the scan returned {batch.schema.types}, DuckDB expects {schema.types}")
    return batch
