"""Blocks of JSON lines as columns, and columns converted to their types.

    line ──┬── columns that Arrow's reader supports ──▶ times as text ──▶ cast
           └── other cells: bytes, maps, text given as another type ──▶ one by one

Nothing is rounded. Times are ISO 8601 and bytes are base64; other text is refused
(``tests/cli/test_text_inputs.py``).
"""

from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.json

from .text_values import from_cells, from_json, has_inside, is_binary, is_text, with_leaves

Types = dict[str, pa.DataType]
_ROWS = msgspec.json.Decoder(dict[str, msgspec.Raw])
MEMBER = "\0"  # stands in for rows without fields: Arrow's reader needs one


def parsed(text: bytes, fields: Types) -> pa.Table:
    """The columns of whole lines: ``fields`` with their types, others as Arrow infers them.

    Raises:
        pa.ArrowException: The text is malformed, or a value has another type.
    """
    return pyarrow.json.read_json(
        pa.BufferReader(text),
        read_options=pyarrow.json.ReadOptions(block_size=len(text) + 1),
        parse_options=pyarrow.json.ParseOptions(
            explicit_schema=pa.schema(list(fields.items())), unexpected_field_behavior="infer"
        ),
    )


def apart(kind: pa.DataType) -> bool:
    """Whether Arrow's reader does not support the type, so that cells are read one by one."""
    return has_inside(kind, lambda inner: pa.types.is_map(inner) or is_binary(inner))


def wire_type(kind: pa.DataType) -> pa.DataType:
    """The type that Arrow's reader is asked for: times are text."""
    return with_leaves(kind, lambda leaf: pa.string() if pa.types.is_temporal(leaf) else leaf)


def split_off(text: bytes, names: set[str]) -> tuple[bytes, dict[str, list[bytes | None]]]:
    """The lines without the columns of these names, and those columns' cells as JSON.

    Raises:
        msgspec.DecodeError: A line is not an object.
    """
    if not names:
        return text, {}
    cells: dict[str, list[bytes | None]] = {name: [] for name in names}
    rest = []
    for line in text.splitlines():
        if not line.strip():
            continue
        row = _ROWS.decode(line)
        for name, found in cells.items():
            raw = row.pop(name, None)
            found.append(None if raw is None or bytes(raw) == b"null" else bytes(raw))
        rest.append(row or {MEMBER: msgspec.Raw(b"null")})
    return msgspec.json.Encoder().encode_lines(rest), cells


def cell_column(cells: list[bytes | None], kind: pa.DataType) -> pa.Array:
    """A column from cells that were split off.

    Raises:
        Unreadable: A cell is not of the type.
    """
    return from_cells(cells, kind, lambda cell: _cell(cell, kind))


def _cell(cell: bytes, kind: pa.DataType) -> Any:
    if is_text(kind) and not cell.startswith(b'"'):
        return cell.decode()
    return from_json(msgspec.json.decode(cell), kind)
