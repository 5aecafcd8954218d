"""How large a schema may be, as it is sent and as a table has it.

Law of this file: pure. A field costs about a kilobyte in every plan, footer and answer that has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from ingester.errors import InvalidRequest

MAX_FIELDS = 10_000
"""Columns, and what is nested in them."""
MAX_METADATA_BYTES = 1 << 20
"""Of the schema and all its fields: tables keep none of it."""


def check_schema_size(what: str, schema: pa.Schema) -> None:
    """Raise :class:`InvalidRequest` for a schema with too many fields or too much metadata.

    Args:
        what: for the message.
    """
    fields, nbytes = _weigh(schema, 0)
    nbytes += _metadata_bytes(schema.metadata)
    if fields > MAX_FIELDS:
        raise InvalidRequest(
            f"{what} has more than {MAX_FIELDS} fields, nested ones included ({len(schema)}"
            " columns)"
        )
    if nbytes > MAX_METADATA_BYTES:
        raise InvalidRequest(
            f"{what} has {nbytes} B of metadata; at most {MAX_METADATA_BYTES} are taken"
        )


def _weigh(fields: Iterable[pa.Field], counted: int) -> tuple[int, int]:
    """How many fields there are, or one more than may be, and the bytes of their metadata."""
    nbytes = 0
    for field in fields:
        counted += 1
        if counted > MAX_FIELDS:
            break
        nbytes += _metadata_bytes(field.metadata)
        kind = field.type
        if kind.num_fields:
            inner = (kind.field(index) for index in range(kind.num_fields))
            counted, more = _weigh(inner, counted)
            nbytes += more
    return counted, nbytes


def _metadata_bytes(metadata: Mapping[bytes, bytes] | None) -> int:
    return sum(len(key) + len(value) for key, value in metadata.items()) if metadata else 0
