"""Values of JSON as columns, at any depth. Nothing is rounded.

    a list of values ──▶ numbers and times as text ──▶ cast

Times are ISO 8601 and bytes are base64; other text is refused
(``tests/cli/test_text_inputs.py``).
"""

import base64
import bisect
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain
from types import NoneType
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from .json_decoding import KINDS, Repeated, decoded, written
from .text_values import Unreadable, converted, is_binary, is_text, named

Made = TypeVar("Made")

NOT_FINITE = ("NaN", "Infinity", "-Infinity")
"""JSON strings that are numbers in a column of floats, as in Protobuf's JSON."""


def column_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """A column of JSON values.

    Raises:
        Unreadable: The first value that is not of the type.
    """
    t = pa.types
    if t.is_map(kind):
        return _maps(values, kind)
    if t.is_list(kind) or t.is_large_list(kind):
        _check(values, kind, list)
        items, offsets = inside(values, lambda flat: column_of(flat, kind.value_type))
        made = pa.ListArray if t.is_list(kind) else pa.LargeListArray
        return made.from_arrays(offsets, items, type=kind, mask=_nulls(values))
    if t.is_struct(kind):
        return _structs(values, kind)
    if is_binary(kind):
        return _bytes(values, kind)
    if t.is_boolean(kind):
        _check(values, kind, bool)
        return pa.array(values, kind)
    if is_text(kind):
        _check(values, kind, str)
        return pa.array(values, kind)
    if t.is_integer(kind) or t.is_floating(kind) or t.is_decimal(kind):
        return _numbers(values, kind)
    _check(values, kind, *() if t.is_null(kind) else (str,))
    return converted(pa.array(values, pa.string()), kind, words=False)


def number_texts(values: Iterable[Any]) -> pa.Array:
    """Numbers as text. Texts stay."""
    texts = [
        str(v, "ascii") if type(v) is msgspec.Raw else v if isinstance(v, str | None) else str(v)
        for v in values
    ]
    return pa.array(texts, pa.string())


def _numbers(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    t = pa.types
    found = set(map(type, values))
    _check(values, kind, int, msgspec.Raw, *() if t.is_integer(kind) else (str,))
    if t.is_floating(kind) and str in found:
        for index, value in enumerate(values):
            if isinstance(value, str) and value not in NOT_FINITE:
                raise _unfit(index, value, kind, "it is a string")
    if t.is_integer(kind) and msgspec.Raw not in found:
        try:
            return pa.array(values, kind)
        except (OverflowError, pa.ArrowException):
            pass  # below with its row
    return converted(number_texts(values), kind, words=False)


def _bytes(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    _check(values, kind, str)
    width = kind.byte_width if pa.types.is_fixed_size_binary(kind) else None
    made: list[bytes | None] = []
    for index, value in enumerate(values):
        try:
            made.append(None if value is None else base64.b64decode(value, validate=True))
        except ValueError as exc:
            raise _unfit(index, value, kind, str(exc)) from exc
        if width is not None and value is not None and len(made[-1] or b"") != width:
            raise _unfit(index, value, kind, f"it is of another length than {width} bytes")
    return pa.array(made, kind)


def _structs(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    _check(values, kind, dict)
    fields = [kind.field(i) for i in range(kind.num_fields)]
    names = {field.name for field in fields}
    for index, value in enumerate(values):
        if value and (strange := [n for n in value if n not in names and value[n] is not None]):
            raise _unfit(index, value, kind, f"the type has no field {strange[0]!r}")
    if not fields:
        return pa.array(values, kind)
    columns = [
        column_of(
            [None if value is None else value.get(field.name) for value in values], field.type
        )
        for field in fields
    ]
    return pa.StructArray.from_arrays(columns, fields=fields, mask=_nulls(values))


def _maps(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    _check(values, kind, dict, list)
    rows: list[list[tuple[Any, Any]] | None] = []
    for index, value in enumerate(values):
        try:
            rows.append(None if value is None else _pairs(value, kind.key_type))
        except ValueError as exc:
            raise _unfit(index, value, kind, str(exc)) from exc
    keys, offsets = inside(rows, lambda flat: column_of([k for k, _ in flat], kind.key_type))
    items, _ = inside(rows, lambda flat: column_of([v for _, v in flat], kind.item_type))
    return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=_nulls(values))


def _pairs(value: Any, key_type: pa.DataType) -> list[tuple[Any, Any]]:
    """A map's keys and values, from an object, ``[["k", 1]]`` or ``[{"key": "k", "value": 1}]``."""
    if isinstance(value, dict):
        # The name of a member is text, and may stand for a number.
        is_number = pa.types.is_integer(key_type)
        return [(msgspec.Raw(k) if is_number else k, v) for k, v in value.items()]
    pairs = []
    for item in value:
        if isinstance(item, dict) and set(item) <= {"key", "value"}:
            item = [item.get("key"), item.get("value")]
        if not isinstance(item, list) or len(item) != 2:
            raise ValueError("an entry is not a key and a value")
        if item[0] is None:
            raise ValueError("a key is null")
        pairs.append((item[0], item[1]))
    return pairs


def inside(values: Sequence[Any], column: Callable[[list[Any]], Made]) -> tuple[Made, list[int]]:
    """What is made of all items of lists, and where each begins. Errors have the list's row."""
    offsets = list(accumulate((len(value or ()) for value in values), initial=0))
    try:
        return column(list(chain.from_iterable(filter(None, values)))), offsets
    except Unreadable as exc:
        exc.index = bisect.bisect_right(offsets, exc.index) - 1
        raise


def _nulls(values: Sequence[Any]) -> pa.Array:
    return pa.array([value is None for value in values], pa.bool_())


def _check(values: Sequence[Any], kind: pa.DataType, *allowed: type) -> None:
    """Raise Unreadable for the first value that is of none of these JSON types."""
    if set(map(type, values)) <= {NoneType, *allowed}:
        return
    for index, value in enumerate(values):
        if type(value) not in (NoneType, *allowed):
            if isinstance(value, Repeated):
                raise _unfit(index, value, kind, f"it has the name {value.name!r} twice")
            raise _unfit(index, value, kind, f"it is {KINDS[type(value)]}")


def _unfit(index: int, value: Any, kind: pa.DataType, why: str) -> Unreadable:
    return Unreadable(index, written(value), f"is not {named(kind)}: {why}")


def of_cells(texts: Iterable[str | None], kind: pa.DataType) -> pa.Array:
    """A column of lists, structs or maps in JSON, or of bytes in base64, as ``query`` writes them.

    Raises:
        Unreadable: A text is not a value of the type.
    """
    values: list[Any] = []
    for index, text in enumerate(texts):
        try:
            values.append(text if is_binary(kind) or text is None else _cell(text.strip()))
        except ValueError as exc:
            raise Unreadable(index, text, f"is not {named(kind)}: {exc}") from exc
    return column_of(values, kind)


def _cell(text: str) -> Any:
    if not text:
        return None
    value, end = decoded(text)
    if end < len(text):
        raise ValueError("text follows the value")
    return value
