"""Blocks of JSON lines as columns, and columns converted to their types.

    line ──┬── columns that Arrow's reader supports ──▶ times as text ──▶ cast
           └── other cells: bytes, maps, text given as another type ──▶ one by one

Nothing is rounded. Times are ISO 8601 and bytes are base64; other text is refused
(``tests/cli/test_text_inputs.py``).
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from .text_values import (
    Repeated,
    Unreadable,
    decode,
    fields_of,
    from_cells,
    from_json,
    has_inside,
    is_binary,
    is_text,
    with_leaves,
)

Types = dict[str, pa.DataType]
_ROWS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ANY_DECIMAL = pa.decimal256(76, 38)
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
    """The type that Arrow's reader is asked for: times are text, and decimals have more digits.

    It reads a number such as 35 as any decimal type, but in 128 bits it may wrap around.
    """

    def wide(leaf: pa.DataType) -> pa.DataType:
        if pa.types.is_temporal(leaf):
            return pa.string()
        return _ANY_DECIMAL if pa.types.is_decimal(leaf) else leaf

    return with_leaves(kind, wide)


def may_round(text: bytes, kinds: Types) -> Iterator[str]:
    """The columns of floats for which the lines may have an integer that Arrow's reader rounds."""
    block = pa.array([text])
    floats = [(name, leaf) for name, kind in kinds.items() for leaf in _floats(name, kind)]
    if not floats or not _matches(block, r"[:\[,\s]-?[0-9]{8,}"):
        return
    for name, (key, kind) in floats:
        digits = 8 if kind.bit_width <= 32 else 16
        keys = "|".join(re.escape(json.dumps(key, ensure_ascii=a)) for a in (True, False))
        if _matches(
            block,
            rf"(?:{keys})\s*:\s*(?:[\[\s0-9.,eE+-]*[\[\s,])?-?[0-9]{{{digits},}}",
        ):
            yield name


def has_infinite(column: pa.Array) -> bool:
    """Whether Arrow's reader has made a number infinite: it does so for float32, at any depth."""
    if pa.types.is_float32(column.type):
        return bool(pc.any(pc.is_inf(column)).as_py())
    if pa.types.is_struct(column.type):
        return any(map(has_infinite, column.flatten()))
    return pa.types.is_list(column.type) and has_infinite(column.flatten())


def _matches(block: pa.Array, pattern: str) -> bool:
    return bool(pc.match_substring_regex(block, pattern)[0].as_py())


def _floats(name: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    if pa.types.is_floating(kind):
        yield name, kind
    elif pa.types.is_struct(kind):
        for field in fields_of(kind):
            yield from _floats(field.name, field.type)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _floats(name, kind.value_type)


def split_off(text: bytes, names: set[str]) -> tuple[bytes, dict[str, list[bytes | None]]]:
    """The lines without the columns of these names, and those columns' cells as JSON.

    Raises:
        msgspec.DecodeError: A line is not an object.
        Unreadable: A line has a name twice.
    """
    if not names:
        return text, {}
    cells: dict[str, list[bytes | None]] = {name: [] for name in names}
    rest: list[dict[str, msgspec.Raw]] = []
    for line in text.splitlines():
        if not line.strip():
            continue
        row = _ROWS.decode(line)
        if isinstance(decoded := decode(line), Repeated):
            raise Unreadable(len(rest), line.decode(), f"has the name {decoded.name!r} twice")
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
    return from_json(decode(cell), kind)
