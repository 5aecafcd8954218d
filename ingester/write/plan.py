"""A plan says how batches of one schema become operations of one table.

All streams that send one schema share a plan, so that a segment of the log has its schema record
once. Plans are bounded by the bytes of their schemas: clients that send ever new ones do not fill
memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from ingester.buffer import TableBuffer
from ingester.dml.record import LoggedSchema
from ingester.schema import Normaliser
from persist.table import TableDefinition, TableKey

MAX_BYTES = 8 << 20
PLAN_BYTES = 512
"""Bytes that a plan counts for beside its schema."""

_Key = tuple[TableKey, type[Normaliser], int, int, bytes]
"""Table, how its rows are made, schema and spec of the table, the schema that was sent."""


@dataclass(frozen=True, slots=True)
class WritePlan:
    """The plan by which batches of one schema become operations of one table."""

    table: TableBuffer
    normaliser: Normaliser
    schema: LoggedSchema
    """The schema of the batches that ``normaliser`` makes."""

    @property
    def spec_id(self) -> int:
        """The partition spec by which batches are split."""
        return self.normaliser.definition.spec_id


class Plans:
    """The plans of all streams. Loop only.

    Args:
        schema_numbers: one for each schema of incoming rows.
    """

    def __init__(self, schema_numbers: Iterator[int]) -> None:
        self._schema_numbers = schema_numbers
        self._plans: dict[_Key, WritePlan] = {}
        self._nbytes = 0

    def get(
        self,
        table: TableBuffer,
        definition: TableDefinition,
        sent: pa.Schema,
        normaliser_type: type[Normaliser],
        made: Normaliser | None = None,
    ) -> WritePlan:
        """The plan for batches of the schema ``sent``.

        Args:
            definition: that of the table, by the partition spec that rows are split by.
            normaliser_type: makes the rows of the table.
            made: a normaliser made before; it is used if it was made of this definition.
        """
        key = _key_of(table, definition, sent, normaliser_type)
        plan = self._plans.get(key)
        if plan is None:
            if made is None or _ids(made.definition) != _ids(definition):
                made = normaliser_type(definition, sent)
            nbytes = PLAN_BYTES + len(key[-1])
            self._nbytes += nbytes
            if self._nbytes > MAX_BYTES:
                self._plans.clear()
                self._nbytes = nbytes
            schema = LoggedSchema.of(next(self._schema_numbers), table.key, made.schema)
            plan = self._plans[key] = WritePlan(table, made, schema)
        return plan

    def has(self, table: TableBuffer, definition: TableDefinition, sent: pa.Schema) -> bool:
        """Whether there is a plan for rows of the schema ``sent``."""
        return _key_of(table, definition, sent, Normaliser) in self._plans


def _ids(definition: TableDefinition) -> tuple[int, int]:
    return definition.schema_id, definition.spec_id


def _key_of(
    table: TableBuffer,
    definition: TableDefinition,
    sent: pa.Schema,
    normaliser_type: type[Normaliser],
) -> _Key:
    sent_bytes = sent.serialize().to_pybytes()
    return (table.key, normaliser_type, *_ids(definition), sent_bytes)
