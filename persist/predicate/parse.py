"""Parses a filter and checks it against a schema. Pure.

A filter is a disjunction of conjunctions of ``[column, operator, value]``. All reasons to refuse a
filter are found here.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import reduce
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from persist.predicate.predicate import (
    COMPARISONS,
    LISTS,
    NULL_TESTS,
    Condition,
    Predicate,
    Term,
)
from persist.predicate.values import Points, fitted

Kinds = Mapping[str, pa.DataType]
"""The types of the existing columns."""

SHOWN = 128
"""The most characters of a value in an error."""
PIECE = 8192
"""The most values converted at once."""
FEW = 16
"""Up to this many values are converted one by one."""


class BadFilter(ValueError):
    """An invalid filter; the message says where."""


def parse_predicate(
    filter_: Sequence[Sequence[Sequence[Any]]] | None,
    schema: pa.Schema,
    pause: Callable[[], None] = lambda: None,
) -> Predicate:
    """Check a filter against a schema.

    Alternatives that name values of one column become one list; those that name values of several
    become :class:`Points`. A row is looked up once, however many alternatives there are.

    Args:
        pause: called between two steps; its exception ends the parsing.

    Raises:
        BadFilter: unknown column or operator, or a value that is not of the column's type.
    """
    kinds = dict(zip(schema.names, schema.types, strict=True))
    lists: dict[str, list[Any]] = {}
    points: dict[tuple[str, ...], list[list[Any]]] = {}
    conjunctions: list[list[Condition]] = []
    for terms in filter_ or ():
        pause()
        for raw in terms:
            _check(raw, kinds)
        if len(terms) == 1 and terms[0][1] in ("=", "in"):
            column, operator, value = terms[0]
            lists.setdefault(column, []).extend(value if operator == "in" else (value,))
        elif (point := _point(terms)) is not None:
            columns = points.setdefault(tuple(point), [[] for _ in point])
            if None not in point.values():  # otherwise no row is equal
                for each, value in zip(columns, point.values(), strict=True):
                    each.append(value)
        else:
            conjunctions.append(_joined(terms, kinds))
    for column, values in lists.items():
        conjunctions.append([_term((column, "in", values), kinds)])
    for names, columns in points.items():
        conjunctions.append(_points(names, columns, kinds))
    return Predicate(conjunctions, pause)


def _check(raw: Sequence[Any], kinds: Kinds) -> None:
    """Raise for an invalid term: column, operator and values."""
    if len(raw) not in (2, 3) or not all(isinstance(text, str) for text in raw[:2]):
        raise BadFilter(f"filter: {_shown(list(raw))} is not [column, operator, value]")
    column, operator = raw[0], raw[1]
    kind = kinds.get(column)
    if kind is None:
        raise BadFilter(f"filter: unknown column {_shown(column)}")
    if len(raw) == 2:
        if operator in NULL_TESTS:
            return
    elif operator in COMPARISONS or operator in LISTS:
        if pa.types.is_nested(kind):
            raise BadFilter(f"filter: column {column!r} of type {kind} has no comparisons")
        if operator in LISTS and not isinstance(raw[2], list):
            raise BadFilter(f"filter: {operator!r} takes a list of values, not {_shown(raw[2])}")
        return
    known = [*COMPARISONS, *LISTS, *NULL_TESTS]
    raise BadFilter(f"filter: {_shown(list(raw))}: operators are {', '.join(known)}")


def _point(terms: Sequence[Sequence[Any]]) -> dict[str, Any] | None:
    """The value of each column, in order of names, if the conjunction only names values."""
    if len(terms) < 2 or any(raw[1] != "=" for raw in terms):
        return None
    found = {raw[0]: raw[2] for raw in terms}
    return dict(sorted(found.items(), key=itemgetter(0))) if len(found) == len(terms) else None


def _joined(terms: Sequence[Sequence[Any]], kinds: Kinds) -> list[Condition]:
    """A conjunction in which the values that a column must differ from are one list."""
    others: dict[str, list[Any]] = {}
    found: list[Condition] = []
    for raw in terms:
        if raw[1] in ("!=", "not in"):
            values = raw[2] if raw[1] == "not in" else (raw[2],)
            others.setdefault(raw[0], []).extend(values)
        else:
            found.append(_term(raw, kinds))
    return found + [_term((column, "not in", values), kinds) for column, values in others.items()]


def _term(raw: Sequence[Any], kinds: Kinds) -> Term:
    column, operator = raw[0], raw[1]
    kind = kinds[column]
    if operator in NULL_TESTS:
        return Term(column, operator, (), False)
    values = raw[2] if operator in LISTS else [raw[2]]
    there = [value for value in values if value is not None]
    scalars = _scalars(column, kind, there)
    if operator in LISTS:
        # No row can have the others.
        scalars = fitted(scalars, kind).drop_null()
    return Term(column, operator, scalars, len(there) < len(values))


def _points(names: tuple[str, ...], columns: Sequence[list[Any]], kinds: Kinds) -> list[Condition]:
    """Tuples of values, without those that no row of the table can have."""
    if not columns[0]:
        return [Term(names[0], "in", (), False)]
    values = [
        fitted(_scalars(name, kinds[name], each), kinds[name])
        for name, each in zip(names, columns, strict=True)
    ]
    there = reduce(pc.and_, [array.is_valid() for array in values])
    return [Points(names, tuple(array.filter(there) for array in values))]


def _scalars(column: str, kind: pa.DataType, values: list[Any]) -> Sequence[pa.Scalar]:
    """The values in the column's type, or a comparable one; an array if they are many.

    Raises:
        BadFilter: one is not a value of the type.
    """
    if len(values) > FEW:
        # In pieces, so that other threads can run in between.
        pieces = [_at_once(kind, values[at : at + PIECE]) for at in range(0, len(values), PIECE)]
        if all(piece is not None for piece in pieces):
            array: Sequence[pa.Scalar] = pa.concat_arrays(pieces)
            return array
    return tuple(_scalar(column, kind, value) for value in values)


def _at_once(kind: pa.DataType, values: list[Any]) -> pa.Array | None:
    """All values in the type; None if one is not of it, or must be looked at by itself."""
    t, sent = pa.types, set(map(type, values))
    try:
        if sent == {int} and (t.is_integer(kind) or t.is_floating(kind)):
            return pa.array(values, kind)
        if sent == {float} and t.is_floating(kind):
            return pa.array(values, kind)
        if sent == {str} and (t.is_string(kind) or t.is_date(kind)):
            return pa.array(values, pa.string()).cast(kind)
        if sent == {str} and t.is_decimal128(kind):
            return pa.array(map(_decimal, values), pa.decimal128(38, kind.scale))
        if sent == {str} and t.is_timestamp(kind):
            return _timestamps(kind, pa.array([_instant(kind, text) for text in values]))
    except (pa.ArrowException, ValueError, TypeError, OverflowError, ArithmeticError):
        return None
    return None


def _scalar(column: str, kind: pa.DataType, value: object) -> pa.Scalar:
    try:
        return _typed(kind, value)
    except (pa.ArrowException, ValueError, TypeError, OverflowError, ArithmeticError) as exc:
        raise BadFilter(
            f"filter: column {column!r}: {_shown(value)} is not a value of type"
            f" {kind}{_written(kind)}"
        ) from exc


def _shown(sent: object) -> str:
    """A value for an error message; a long one is cut."""
    text = repr(sent)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _written(kind: pa.DataType) -> str:
    """How to write a value of the type, if that is not obvious."""
    if pa.types.is_date(kind):
        return "; write it as '2026-11-21'"
    if not pa.types.is_timestamp(kind):
        return ""
    if kind.tz is None:
        return "; write it as '2026-11-21T12:00:00': the column has no time zone"
    return "; write it as '2026-11-21T12:00:00Z', or with an offset, as '+01:00', for the 'Z'"


def _typed(kind: pa.DataType, value: object) -> pa.Scalar:
    t = pa.types
    if t.is_boolean(kind):
        if not isinstance(value, bool):
            raise TypeError(value)
        return pa.scalar(value, kind)
    if t.is_integer(kind) or t.is_floating(kind):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(value)
        if t.is_integer(kind) and isinstance(value, float):
            return pa.scalar(value, pa.float64())
        if t.is_integer(kind):
            return _wide_integer(kind, int(value))
        return pa.scalar(float(value), kind)
    if not isinstance(value, str):
        raise TypeError(value)
    if t.is_binary(kind):
        try:
            return pa.scalar(base64.b64decode(value, validate=True), kind)
        except binascii.Error as exc:
            raise ValueError(value) from exc
    if t.is_decimal128(kind):
        return pa.scalar(_decimal(value), pa.decimal128(38, kind.scale))
    if t.is_timestamp(kind):
        return _timestamps(kind, pa.scalar(_instant(kind, value)))
    text = pa.scalar(value, pa.string())
    return text if text.type == kind else text.cast(kind)


def _decimal(text: str) -> Decimal:
    """The number, if it has about as many digits as a column can hold.

    Arrow expands a large exponent to all its digits, which ends the process.
    """
    value = Decimal(text)
    if not value.is_finite() or max(abs(value.adjusted()), len(value.as_tuple().digits)) > 100:
        raise ValueError(text)
    return value


def _wide_integer(kind: pa.DataType, value: int) -> pa.Scalar:
    """Integers beyond the column's range as the widest type that compares with both."""
    try:
        return pa.scalar(value, kind)
    except (pa.ArrowInvalid, OverflowError):
        return pa.scalar(value, pa.decimal128(38, 0))


def _instant(kind: pa.DataType, value: str) -> str:
    """ISO 8601; in a column with a time zone, text without a zone means UTC."""
    text = value.strip().upper()
    if len(text) == len("2026-11-21"):
        text += "T00:00:00"
    has_zone = text.endswith("Z") or "+" in text[10:] or "-" in text[10:]
    return text if has_zone or kind.tz is None else text + "Z"


def _timestamps(kind: pa.DataType, texts: Any) -> Any:
    """Text, or an array of it, as the column's type."""
    return texts.cast(kind if kind.tz is None else pa.timestamp(kind.unit, "UTC")).cast(kind)
