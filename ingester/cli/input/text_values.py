"""Exact conversion of texts to values of a type. Errors name the first text that does not convert.

In addition to Arrow's syntax, blanks around a value and words for a missing value are accepted
unless the type is text (``tests/cli/test_text_inputs.py``).
"""

import base64
import binascii
import bisect
import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from ingester.conversion import NotExact
from ingester.conversion import converted as exactly

from ..time_texts import FAR, far_count, has_far

Cell = TypeVar("Cell", bound=str | bytes)

NO_VALUE = ("", "NA", "N/A", "n/a", "#N/A", "#NA", "NULL", "null", "\\N")
"""Words that other tools write for a missing value; null in columns that are not text."""
NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""JSON strings that are numbers in a numeric column, as in Protobuf's JSON."""
_SHOWN_CHARACTERS = 80
_NO_VALUE_OF_THE_TYPE = (binascii.Error, AttributeError, TypeError, ValueError, KeyError)


class Number(str):
    """A JSON number as it is written."""

    __slots__ = ()


class Repeated(dict[str, Any]):
    """A JSON object that has a name twice."""

    name: str


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    names = [name for name, _ in pairs]
    repeated = Repeated(made)
    repeated.name = next(name for name in names if names.count(name) > 1)
    return repeated


_JSON = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=Number, parse_float=Number, parse_constant=Number
)


def decode(text: str | bytes) -> Any:
    """A JSON value, numbers as :class:`Number`.

    Raises:
        ValueError: The text is malformed, or nested too deeply.
    """
    try:
        return _JSON.decode(text if isinstance(text, str) else text.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


class Unreadable(Exception):
    """A text that its column's type cannot hold; ``index`` is its position in the input."""

    def __init__(self, index: int, text: str | None, why: str) -> None:
        super().__init__(f"{shortened(text)} {why}")
        self.index = index


def shortened(text: str | None) -> str:
    """A text for a message, shortened."""
    if text is not None and len(text) > _SHOWN_CHARACTERS:
        return f"{text[:_SHOWN_CHARACTERS]!r}…"
    return repr(text)


def converted(texts: pa.Array, kind: pa.DataType, decimal_comma: bool = False) -> pa.Array:
    """The values of the texts; nulls stay null.

    Raises:
        Unreadable: The first text that is not a value of the type.
    """
    if pa.types.is_null(kind):
        return pa.nulls(len(texts))
    if is_text(kind):
        return texts if texts.type == kind else texts.cast(kind)
    if pa.types.is_nested(kind) or is_binary(kind):
        return from_cells(texts.to_pylist(), kind, lambda text: _value_of_text(text, kind))
    if decimal_comma and (pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        texts = pc.replace_substring(texts, ",", ".")
    try:
        return _cast(texts, kind)
    except (pa.ArrowException, Unreadable):
        texts = cleaned(texts)
    try:
        return _cast(texts, kind)
    except pa.ArrowException:
        index = _first_unreadable(texts, kind)
        text = texts[index].as_py()
        raise Unreadable(index, text, f"is not {_named(kind, text)}") from None


def finished(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column of :func:`carrier` types converted to its type, at any depth.

    Raises:
        Unreadable: A value is not of the type.
    """
    t = pa.types
    if column.type == kind:
        return column
    if is_text(column.type):
        return converted(column, kind)
    if t.is_struct(kind) and t.is_struct(column.type):
        # flatten() makes a field null where the struct is null.
        fields = dict(zip([f.name for f in fields_of(column.type)], column.flatten(), strict=True))
        for name in set(fields) - {f.name for f in fields_of(kind)}:
            if fields[name].null_count < len(column):
                index = pc.index(fields[name].is_valid(), True).as_py()
                raise Unreadable(
                    index, str(column[index]), f"has a field {name!r} that {kind} lacks"
                )
        columns = [
            finished(fields[f.name], f.type) if f.name in fields else pa.nulls(len(column), f.type)
            for f in fields_of(kind)
        ]
        nulls = column.is_null()
        return pa.StructArray.from_arrays(columns, fields=fields_of(kind), mask=nulls)
    if t.is_map(kind) and t.is_map(column.type):
        keys = _inside(column, column.keys, kind.key_type)
        items = _inside(column, column.items, kind.item_type)
        nulls = column.is_null()
        return pa.MapArray.from_arrays(column.offsets, keys, items, type=kind, mask=nulls)
    if t.is_list(kind) and t.is_list(column.type):
        values = _inside(column, column.values, kind.value_type)
        nulls = column.is_null()
        return pa.ListArray.from_arrays(column.offsets, values, type=kind, mask=nulls)
    try:
        return exactly(column, kind)
    except NotExact as exc:
        said = exc.value.rstrip("0").rstrip(".") if t.is_decimal256(column.type) else exc.value
        raise Unreadable(exc.index, said, f"is not {_named(kind)}") from exc


def _inside(column: pa.Array, values: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values of a list or map; an error's index is that of the row."""
    try:
        return finished(values, kind)
    except Unreadable as exc:
        exc.index = bisect.bisect_right(column.offsets.to_pylist(), exc.index) - 1
        raise


def cleaned(texts: pa.Array) -> pa.Array:
    """The texts without surrounding blanks, and null for words that mean a missing value."""
    texts = pc.utf8_trim_whitespace(texts)
    missing = pc.is_in(texts, value_set=pa.array(NO_VALUE, texts.type))
    return pc.if_else(missing, pa.scalar(None, texts.type), texts)


def readable_as(texts: pa.Array, kind: pa.DataType) -> bool:
    """Whether all texts are values of the type."""
    try:
        _cast(texts, kind)
    except (pa.ArrowException, Unreadable):
        return False
    return True


def is_text(kind: pa.DataType) -> bool:
    t = pa.types
    return bool(t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind))


def is_binary(kind: pa.DataType) -> bool:
    """Whether values are bytes, which are written in base64."""
    t = pa.types
    return bool(t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind))


def has_inside(kind: pa.DataType, test: Callable[[pa.DataType], bool]) -> bool:
    """Whether the type, or a type inside it, passes the test."""
    return test(kind) or any(has_inside(field.type, test) for field in fields_of(kind))


def from_json(value: Any, kind: pa.DataType) -> Any:
    """A value of :func:`decode`, ready for :func:`pyarrow.array` with :func:`carrier` of the type.

    Raises:
        ValueError, TypeError, KeyError: It is not of the type.
    """
    t = pa.types
    if value is None:
        return None
    if isinstance(value, Repeated):
        raise ValueError(f"has the name {value.name!r} twice")
    if is_binary(kind):
        if isinstance(value, Number):
            raise TypeError("a number is not base64")
        return base64.b64decode(value, validate=True)
    if t.is_map(kind):
        pairs = value.items() if isinstance(value, dict) else map(_pair, value)
        return [
            (from_json(_key(k, kind.key_type), kind.key_type), from_json(v, kind.item_type))
            for k, v in pairs
        ]
    if t.is_struct(kind):
        fields = {kind.field(i).name: kind.field(i).type for i in range(kind.num_fields)}
        if strangers := set(value) - set(fields):
            raise ValueError(f"has fields that {kind} lacks: {sorted(strangers)}")
        return {name: from_json(value.get(name), inner) for name, inner in fields.items()}
    if t.is_list(kind) or t.is_large_list(kind):
        if isinstance(value, str):
            raise TypeError("it is not a list")
        return [from_json(item, kind.value_type) for item in value]
    if isinstance(value, dict | list):
        raise TypeError("it is a list" if isinstance(value, list) else "it is an object")
    if isinstance(value, bool) != t.is_boolean(kind):
        raise TypeError("it is not a boolean" if t.is_boolean(kind) else "it is a boolean")
    if isinstance(value, str) and not isinstance(value, Number) and t.is_floating(kind):
        NOT_FINITE[value]  # other texts are no numbers
    if t.is_integer(kind) and not isinstance(value, Number):
        raise TypeError("it is not a number")
    if isinstance(value, Number) and (is_text(kind) or t.is_temporal(kind)):
        raise TypeError("it is a number")
    return value


def _key(key: Any, kind: pa.DataType) -> Any:
    """A map's key: a name is text, and may stand for a number."""
    return Number(key) if isinstance(key, str) and pa.types.is_integer(kind) else key


def carrier(kind: pa.DataType) -> pa.DataType:
    """The type that represents a type's values in JSON: times and numbers are text."""
    t = pa.types
    return with_leaves(
        kind,
        lambda leaf: leaf if t.is_boolean(leaf) or is_binary(leaf) else pa.string(),
    )


def with_leaves(kind: pa.DataType, leaf_type: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """The type with all inner types that are not nested replaced. Large lists become lists."""
    t = pa.types
    if t.is_map(kind):
        return pa.map_(*(with_leaves(each, leaf_type) for each in (kind.key_type, kind.item_type)))
    if t.is_struct(kind):
        return pa.struct([f.with_type(with_leaves(f.type, leaf_type)) for f in fields_of(kind)])
    if t.is_list(kind) or t.is_large_list(kind):
        return pa.list_(with_leaves(kind.value_type, leaf_type))
    return leaf_type(kind)


def fields_of(kind: pa.DataType) -> list[pa.Field]:
    """The fields of a nested type; empty for other types."""
    return [kind.field(i) for i in range(kind.num_fields)]


def _value_of_text(text: str, kind: pa.DataType) -> Any:
    """A list, struct or map from JSON, or bytes from base64, as ``query`` writes them."""
    if is_binary(kind):
        return from_json(text, kind)
    return from_json(decode(text), kind) if text else None


def _pair(item: Any) -> tuple[Any, Any]:
    if isinstance(item, dict):
        return item["key"], item.get("value")
    key, value = item
    return key, value


def _cast(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    if (pa.types.is_timestamp(kind) or pa.types.is_date32(kind)) and has_far(texts):
        return _far_times(texts, kind)
    if pa.types.is_timestamp(kind):
        # Zeros after the unit's digits may be dropped.
        digits = {"s": 0, "ms": 3, "us": 6, "ns": 9}[kind.unit]
        try:
            return texts.cast(kind)
        except pa.ArrowException:
            pattern = rf"(\.\d{{{digits}}})0+" if digits else r"(\.)0+"
            return pc.replace_substring_regex(texts, pattern, r"\1").cast(kind)
    return exactly(texts, kind)


def _far_times(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast times that include years that Arrow does not parse."""
    far = pc.fill_null(pc.match_substring_regex(texts, FAR), False)
    times = _cast(pc.if_else(far, pa.scalar(None, texts.type), texts), kind)
    counts = []
    for index in pc.indices_nonzero(far).to_pylist():
        text = texts[index].as_py()
        try:
            counts.append(far_count(text, kind))
        except ValueError as exc:
            raise Unreadable(index, text, f"is not {_named(kind)}: {exc}") from exc
    plain = pa.int32() if pa.types.is_date32(kind) else pa.int64()
    return pc.replace_with_mask(times, far, pa.array(counts, plain).view(kind))


def _first_unreadable(texts: pa.Array, kind: pa.DataType) -> int:
    """The index of the first text that is not a value of the type, by bisection. There is one."""
    return bisect.bisect_left(
        range(len(texts) - 1), True, key=lambda n: not readable_as(texts.slice(0, n + 1), kind)
    )


def from_cells(
    cells: Sequence[Cell | None], kind: pa.DataType, value_of: Callable[[Cell], Any]
) -> pa.Array:
    """A column of cells converted one by one; ``value_of`` returns a value for :func:`carrier`.

    Raises:
        Unreadable: The first cell that is not a value of the type.
    """
    values, inner = [], carrier(kind)
    for index, cell in enumerate(cells):
        try:
            value = None if cell is None else value_of(cell)
            pa.array([value], inner)
        except (*_NO_VALUE_OF_THE_TYPE, pa.ArrowException) as exc:
            text = cell.decode() if isinstance(cell, bytes) else cell
            raise Unreadable(index, text, f"is not {_named(kind)}: {exc}") from exc
        values.append(value)
    try:
        return finished(pa.array(values, inner), kind)
    except pa.ArrowException as exc:
        raise Unreadable(0, None, f"is not {_named(kind)}: {exc}") from exc


def _named(kind: pa.DataType, text: str | None = None) -> str:
    if pa.types.is_timestamp(kind):
        if kind.unit != "ns" and re.search(r"\.\d{7,}", text or ""):
            return (
                f"{kind}; to keep nanoseconds, create the table with"
                " 'ingester create --timestamp-unit ns'"
            )
        if kind.tz is not None:
            return f"{kind} (ISO 8601 with a zone, such as 2026-11-21T10:00:00Z)"
        return f"{kind} (ISO 8601 without a zone, such as 2026-11-21 10:00:00)"
    if pa.types.is_decimal(kind):
        return f"{kind} without loss"
    return str(kind)
