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

from persist.predicate.literals import Number, Place, check_digits, integer_range, place
from persist.predicate.predicate import (
    COMPARISONS,
    LISTS,
    NOT_ORDERS,
    NULL_TESTS,
    OPPOSITE,
    Condition,
    Predicate,
    Term,
)
from persist.predicate.values import Points

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
    elif operator in COMPARISONS or operator in NOT_ORDERS or operator in LISTS:
        if pa.types.is_nested(kind):
            raise BadFilter(f"filter: column {column!r} of type {kind} has no comparisons")
        if operator in LISTS and not isinstance(raw[2], list):
            raise BadFilter(f"filter: {operator!r} takes a list of values, not {_shown(raw[2])}")
        return
    known = [*COMPARISONS, *LISTS, *NULL_TESTS, *NOT_ORDERS]
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
    if operator in NULL_TESTS:
        return Term(column, operator, (), False)
    if operator not in LISTS:
        return _comparison(column, operator, kinds[column], raw[2])
    values = raw[2]
    there = [value for value in values if value is not None]
    found = _values(column, kinds[column], there).drop_null()
    return Term(column, operator, found, len(there) < len(values))


def _comparison(column: str, operator: str, kind: pa.DataType, value: Any) -> Term:
    """A comparison with one value, as one with a value of the column's type."""
    if value is None:
        return _nothing(column, kind)
    negated = operator in NOT_ORDERS
    found = _place(column, kind, value).comparison(operator.removeprefix("not "))
    if found is None:
        return Term(column, "is not null", (), False) if negated else _nothing(column, kind)
    operator, scalar = found
    if negated:
        # Only NaN is neither below, equal nor above.
        operator = f"not {operator}" if pa.types.is_floating(kind) else OPPOSITE[operator]
    return Term(column, operator, (scalar,), False)


def _nothing(column: str, kind: pa.DataType) -> Term:
    """A condition that no row meets."""
    return Term(column, "in", pa.array([], kind), False)


def _points(names: tuple[str, ...], columns: Sequence[list[Any]], kinds: Kinds) -> list[Condition]:
    """Tuples of values, without those that no row of the table can have."""
    if not columns[0]:
        return [_nothing(names[0], kinds[names[0]])]
    values = [_values(name, kinds[name], each) for name, each in zip(names, columns, strict=True)]
    there = reduce(pc.and_, [array.is_valid() for array in values])
    return [Points(names, tuple(array.filter(there) for array in values))]


def _values(column: str, kind: pa.DataType, values: list[Any]) -> pa.Array:
    """The values in the column's type; null for each that no row can have.

    Raises:
        BadFilter: One cannot be compared with the type.
    """
    pieces = []
    # In pieces, so that other threads can run in between.
    for at in range(0, len(values), PIECE):
        piece = values[at : at + PIECE]
        found = _at_once(kind, piece) if len(piece) > FEW else None
        if found is None:
            found = pa.array([_value(column, kind, value) for value in piece], kind)
        pieces.append(found)
    return pa.concat_arrays(pieces) if pieces else pa.array([], kind)


def _at_once(kind: pa.DataType, values: list[Any]) -> pa.Array | None:
    """All values in the type; None if they must be looked at one by one."""
    t, sent = pa.types, set(map(type, values))
    try:
        if sent == {int} and t.is_integer(kind):
            low, high = integer_range(kind)
            return pa.array([value if low <= value <= high else None for value in values], kind)
        if sent <= {int, float} and t.is_float64(kind) and all(abs(v) <= 2**53 for v in values):
            return pa.array(map(float, values), kind)
        if sent == {str} and (t.is_string(kind) or t.is_date(kind)):
            return pa.array(values, pa.string()).cast(kind)
        if sent == {str} and t.is_decimal128(kind):
            return pa.array(map(_decimal, values), kind)
        if sent == {str} and t.is_timestamp(kind):
            return _timestamps(kind, pa.array([_instant(kind, text) for text in values]))
    except (pa.ArrowException, ValueError, TypeError, OverflowError, ArithmeticError):
        return None
    return None


def _value(column: str, kind: pa.DataType, value: object) -> pa.Scalar | None:
    """The value in the column's type; None if no row can have it."""
    found = _place(column, kind, value)
    return found.below if found.is_value else None


def _place(column: str, kind: pa.DataType, value: object) -> Place:
    try:
        return _typed(kind, value)
    except (pa.ArrowException, ValueError, TypeError, OverflowError, ArithmeticError) as exc:
        raise BadFilter(
            f"filter: column {column!r}: {_shown(value)} is not a value of type"
            f" {kind}{_written(kind, value)}"
        ) from exc


def _shown(sent: object) -> str:
    """A value for an error message; a long one is cut."""
    text = repr(sent)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _written(kind: pa.DataType, value: object) -> str:
    """How to write a value of the type, if that is not obvious."""
    if pa.types.is_date(kind):
        return "; write it as '2026-11-21'"
    if pa.types.is_decimal(kind) and isinstance(value, str):
        return f"; a quoted number has at most {kind.scale} digits after the point"
    if not pa.types.is_timestamp(kind):
        return ""
    if kind.tz is None:
        return "; write it as '2026-11-21T12:00:00': the column has no time zone"
    return (
        "; write it as '2026-11-21T12:00:00Z', or with an offset, as '+01:00', for the 'Z', or the"
        " day alone for its first moment in UTC"
    )


def _typed(kind: pa.DataType, value: object) -> Place:
    """Where a value lies among those of a type. Raises any error if it does not compare."""
    t = pa.types
    if t.is_integer(kind) or t.is_floating(kind) or t.is_decimal128(kind):
        if isinstance(value, str) and t.is_decimal128(kind):
            return _quoted(kind, value)
        if isinstance(value, bool) or not isinstance(value, Number):
            raise TypeError(value)
        return place(value, kind)
    scalar = _scalar(kind, value)
    return Place(scalar, scalar, True)


def _scalar(kind: pa.DataType, value: object) -> pa.Scalar:
    t = pa.types
    if t.is_boolean(kind):
        if not isinstance(value, bool):
            raise TypeError(value)
        return pa.scalar(value, kind)
    if not isinstance(value, str):
        raise TypeError(value)
    if t.is_binary(kind):
        try:
            return pa.scalar(base64.b64decode(value, validate=True), kind)
        except binascii.Error as exc:
            raise ValueError(value) from exc
    if t.is_timestamp(kind):
        return _timestamps(kind, pa.scalar(_instant(kind, value)))
    text = pa.scalar(value, pa.string())
    return text if text.type == kind else text.cast(kind)


def _quoted(kind: pa.DataType, text: str) -> Place:
    """A decimal as text. Unlike a number it must have the column's digits after the point."""
    found = place(_decimal(text), kind)
    if not found.is_value and found.below is not None and found.above is not None:
        raise ValueError(text)
    return found


def _decimal(text: str) -> Decimal:
    value = Decimal(text)
    # Arrow expands a large exponent to all its digits, which ends the process.
    check_digits(value)
    return value


def _instant(kind: pa.DataType, value: str) -> str:
    """ISO 8601. Beside a column with a time zone a time has one, and a day is one in UTC."""
    text = value.strip().upper()
    if len(text) == len("2026-11-21"):
        return f"{text}T00:00:00" if kind.tz is None else f"{text}T00:00:00Z"
    if kind.tz is not None and not (text.endswith("Z") or "+" in text[10:] or "-" in text[10:]):
        raise ValueError(f"{value} has no time zone")
    return text


def _timestamps(kind: pa.DataType, texts: Any) -> Any:
    """Text, or an array of it, as the column's type."""
    return texts.cast(kind if kind.tz is None else pa.timestamp(kind.unit, "UTC")).cast(kind)
