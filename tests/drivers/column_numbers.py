"""The numbers of columns in a table's data files, compared with those of its definition."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from persist.manifest import Manifest, TableState
from persist.parquet.field_ids import KEY, with_field_ids
from persist.table import TableDefinition


def numbers_of(schema: pa.Schema) -> dict[str, list[int | None]]:
    """For each column its number, and those of everything inside it, in order."""

    def inside(field: pa.Field) -> Iterator[int | None]:
        found = (field.metadata or {}).get(KEY)
        yield None if found is None else int(found)
        kind = field.type
        if pa.types.is_map(kind):
            yield from inside(kind.key_field)
            yield from inside(kind.item_field)
        else:
            for place in range(kind.num_fields):
                yield from inside(kind.field(place))

    return {field.name: list(inside(field)) for field in schema}


def check_numbers(manifest: Manifest, state: TableState | None = None) -> tuple[int, int]:
    """Check the files of a state, by default the head, against its definition.

    Returns:
        How many files have numbers, all of them right, and how many have none at all.
    """
    state = manifest.load() if state is None else state
    definition = TableDefinition.of_state(state)
    expected = numbers_of(with_field_ids(definition.schema, definition.first_schema_id))
    numbered = plain = 0
    for path in state.files:
        with manifest.store.open(manifest.object_path(path)) as source:
            found = numbers_of(pq.read_schema(source))
        if all(number is None for column in found.values() for number in column):
            plain += 1
            continue
        numbered += 1
        assert found == {name: expected[name] for name in found}, path
    return numbered, plain
