"""The table that a copy makes, by the columns and the key that it brings.

Law of this file: pure. The columns are those of the copy and no others. Where the table is there
and can be laid out as before (partitions, sort order, the unit of its times), it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from ingester.errors import InvalidRequest
from ingester.schema.definition import define_table
from ingester.schema.normalise import kept_schema
from persist.table import TableDefinition


def copy_definition(
    sent: pa.Schema, primary_key: Sequence[str], there: TableDefinition | None
) -> TableDefinition:
    """The definition of the table that a copy makes.

    Args:
        sent: The schema of the copy's batches.
        there: The table that it takes the place of; None where there is none.

    Raises:
        InvalidRequest: A name, a type or a key that no table takes.
    """
    if not primary_key:
        raise InvalidRequest("copy: a table that is copied has a primary key, and none is named")
    unit = "us" if there is None else there.timestamp_unit
    fields = [field.with_nullable(True) for field in kept_schema(sent, unit, ())]
    schema = pa.schema(fields)
    if there is None:
        return define_table(schema, primary_key=primary_key, partition_by=[], timestamp_unit=unit)
    return _laid_out(schema, primary_key, there).anew(there)


def _laid_out(
    schema: pa.Schema, primary_key: Sequence[str], there: TableDefinition
) -> TableDefinition:
    names, unit = set(schema.names), there.timestamp_unit
    spec = there.spec.texts() if names.issuperset(there.spec.columns) else ()
    sort_by = there.sort_by if names.issuperset(there.sort_by) else ()
    for partition_by, order in ((spec, sort_by), (spec, ()), ((), sort_by)):
        try:
            return define_table(
                schema,
                primary_key=primary_key,
                partition_by=partition_by,
                sort_by=order,
                timestamp_unit=unit,
            )
        except InvalidRequest:
            continue  # as one of the two needs what the new columns or the key do not have
    return define_table(schema, primary_key=primary_key, partition_by=[], timestamp_unit=unit)
