"""Work on the columns of a wide schema, in a thread: on the loop, everybody would wait for it.

Each look at a schema takes some microseconds a column, and to open a stream takes several: for
2,000 columns the loop stood still for 60 ms. In a thread others have the interpreter in between.

Law of this file: what is worked on does not change, but the table may meanwhile: whoever asks looks
again whether the answer is still about it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import pyarrow as pa
import trio

from ingester.buffer import TableBuffer
from ingester.schema.normalise import missing_columns
from persist.table import TableDefinition

T = TypeVar("T")

WIDE = 200
"""The columns from which on a thread is worth it: fewer take less than 2 ms."""


class WideSchemas:
    """Does work on schemas; one wide one at a time, so that many take one thread's time. Loop."""

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(1)

    async def work(self, schema: pa.Schema, call: Callable[[], T]) -> T:
        """Return or raise what the call does; without a checkpoint where the schema is narrow."""
        if not is_wide(schema):
            return call()
        return await trio.to_thread.run_sync(call, limiter=self._limiter)

    async def of_table(
        self,
        table: TableBuffer,
        schema: pa.Schema,
        call: Callable[[TableDefinition], T],
    ) -> T:
        """Return what the call makes of the table's definition, as its columns are on return."""
        while True:
            definition = table.definition
            found = await self.work(schema, partial(call, definition))
            if table.definition.schema_id == definition.schema_id:
                return found

    async def missing(self, table: TableBuffer, sent: pa.Schema) -> list[pa.Field]:
        """Return the columns of a batch that the table does not have yet."""
        return await self.of_table(table, sent, partial(_missing, sent))


def is_wide(schema: pa.Schema) -> bool:
    """Whether work on a schema takes so long that it is not for the loop."""
    return len(schema) > WIDE


def _missing(sent: pa.Schema, definition: TableDefinition) -> list[pa.Field]:
    return missing_columns(definition, sent)
