"""Blocks of JSON lines become columns, and columns the types that they are to have.

    line ──┬── what Arrow's reader takes ──▶ columns, times as texts ──▶ cast
           └── cells apart: bytes, maps, texts of what is no text ──▶ one by one

Law of this file: pure. Nothing is rounded, and a text stands for its value only in its own form:
ISO 8601 for times, base64 for bytes.
"""

from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.json

from .text_values import from_cells, from_json, has_inside, is_binary, is_text, with_leaves

Types = dict[str, pa.DataType]
_ROWS = msgspec.json.Decoder(dict[str, msgspec.Raw])
MEMBER = "\0"  # of rows without any field: Arrow's reader needs one


def parsed(text: bytes, fields: Types) -> pa.Table:
    """The columns of whole lines, those of ``fields`` in their types, others as Arrow sees them.

    Raises:
        pa.ArrowException: malformed, or a value of another type.
    """
    return pyarrow.json.read_json(
        pa.BufferReader(text),
        read_options=pyarrow.json.ReadOptions(block_size=len(text) + 1),
        parse_options=pyarrow.json.ParseOptions(
            explicit_schema=pa.schema(list(fields.items())), unexpected_field_behavior="infer"
        ),
    )


def apart(kind: pa.DataType) -> bool:
    """Whether Arrow's reader cannot make the type, so that its cells are read one by one."""
    return has_inside(kind, lambda inner: pa.types.is_map(inner) or is_binary(inner))


def wire_type(kind: pa.DataType) -> pa.DataType:
    """The type in which Arrow's reader is asked for a type's values: times are texts."""
    return with_leaves(kind, lambda leaf: pa.string() if pa.types.is_temporal(leaf) else leaf)


def split_off(text: bytes, names: set[str]) -> tuple[bytes, dict[str, list[bytes | None]]]:
    """The lines without the columns of these names, and the cells of those as they are written.

    Raises:
        msgspec.DecodeError: a line is no object.
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
    """A column of cells that were split off.

    Raises:
        Unreadable: one is not of the type.
    """
    return from_cells(cells, kind, lambda cell: _cell(cell, kind))


def _cell(cell: bytes, kind: pa.DataType) -> Any:
    if is_text(kind) and not cell.startswith(b'"'):
        return cell.decode()
    return from_json(msgspec.json.decode(cell), kind)
