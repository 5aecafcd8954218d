"""How much a version of a table holds, from its manifest alone.

Law of this file: a number is exact or it is None. A file that is older than a column has it as null
in every row; a file whose statistics do not speak of a column that it has leaves that unknown.
"""

from __future__ import annotations

from ingester.pushes.contexts import VersionStatistics
from persist.manifest import TableState
from persist.table import read_schema


def statistics_of(state: TableState) -> VersionStatistics:
    """Return rows, bytes, and the nulls of every column of the current schema."""
    had = {schema_id: read_schema(schema).names for schema_id, schema in state.schemas.items()}
    columns = [] if state.current_schema is None else had[state.current_schema.schema_id]
    nulls: dict[str, int | None] = dict.fromkeys(columns, 0)
    for add in state.files.values():
        for column in columns:
            known = nulls[column]
            if known is None:
                continue
            stats = add.stats.get(column)
            if stats is not None and stats.nulls is not None:
                nulls[column] = known + stats.nulls
            elif column not in had[add.schema_id]:
                nulls[column] = known + add.rows
            else:
                nulls[column] = None
    return VersionStatistics(state.table_version, state.rows, state.bytes, nulls)
