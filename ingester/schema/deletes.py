"""Batches of keys to be deleted, brought to the form in which a table's buffers keep them.

Law of this file: a row that deletes has its key, in the table's types, and a mark; nothing else.
"""

from dataclasses import replace

import pyarrow as pa

from ingester.errors import InvalidRequest
from ingester.schema.normalise import Normaliser
from persist.table import DELETED, TableDefinition

_MARK = pa.field(DELETED, pa.bool_(), nullable=False)


class DeleteNormaliser(Normaliser):
    """Turns batches of keys into rows that delete them."""

    def __init__(self, definition: TableDefinition, sent: pa.Schema) -> None:
        """Plan the way from ``sent`` to the table.

        Raises:
            InvalidRequest: the table has no key, or other columns than the key's were sent.
        """
        if not definition.keyed:
            raise InvalidRequest("delete: the table has no primary key, its rows stay for ever")
        strangers = [name for name in sent.names if name not in definition.primary_key]
        if strangers:
            raise InvalidRequest(
                f"delete: column {strangers[0]!r} is not in the primary key"
                f" {list(definition.primary_key)}"
            )
        super().__init__(replace(definition, schema=definition.key_schema), sent)
        self.schema = self._kept.append(_MARK)

    def most_bytes(self, batch: pa.RecordBatch) -> float | None:
        """See :meth:`Normaliser.most_bytes`."""
        most = super().most_bytes(batch)
        return None if most is None else most + batch.num_rows

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The keys with their marks. Raises InvalidRequest as :meth:`Normaliser.__call__`."""
        keys = super().__call__(batch)
        marks = pa.repeat(pa.scalar(True), keys.num_rows)
        return pa.RecordBatch.from_arrays([*keys.columns, marks], schema=self.schema)
