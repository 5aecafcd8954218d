"""Turns a filter that DuckDB pushed into a scan into the filter of a ticket.

DuckDB hands its filter to a dataset as a pyarrow expression. The only documented form in which
pyarrow shows the parts of one is Substrait::

    ExtendedExpression   functions by number, one expression
    expression           literal | field | function (equal, and, …) | if-then | one of a list
          │
          ▼
    [["host", "=", "h1"]], [["v", ">", 3], ["w", "is null"]]      alternatives of conditions

A part without such a form is left out, so the filter may let too many rows pass but never too few.
It is not exact then, and the caller applies the expression itself. Logic is three-valued: each
part is asked for the rows for which it is true, or for which it is false; a null is neither
(``tests/sql/worker/test_substrait.py``). Pure.

Source: https://github.com/substrait-io/substrait/blob/main/proto/substrait/algebra.proto
"""

from __future__ import annotations

import base64
import math
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Context, Decimal
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.dataset

from ingester.protobuf import fields, signed

MAX_ALTERNATIVES = 1000
"""A filter with more alternatives is cut down, because AND over ORs multiplies them."""
MAX_NESTING = 12
"""More levels of calls are not converted: pyarrow 26 doubles the message with each; 12 make 1 MB.

Source: https://github.com/apache/arrow/issues/48761
"""
_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)

_LITERAL, _FIELD, _FUNCTION, _IF_THEN, _ONE_OF = 1, 2, 3, 6, 8
_COMPARISONS = {
    "equal": ("=", "!="),
    "not_equal": ("!=", "="),
    "lt": ("<", "not <"),
    "lte": ("<=", "not <="),
    "gt": (">", "not >"),
    "gte": (">=", "not >="),
}
"""The operators for the rows for which a comparison is true, and for which it is false."""
_NULL_TESTS = {"is_null": ("is null", "is not null"), "is_not_null": ("is not null", "is null")}
_DIGITS = Context(prec=38)


@dataclass(frozen=True, slots=True)
class PushedFilter:
    """A filter as the daemon takes it.

    Attributes:
        terms: a ticket's filter; None if every row may match.
        exact: whether ``terms`` matches the same rows as the expression, not only all of them.
    """

    terms: list[list[list[Any]]] | None
    exact: bool


def pushed_filter(expression: pyarrow.dataset.Expression, schema: pa.Schema) -> PushedFilter:
    """Return the filter of an expression over columns of a schema."""
    if _nesting(str(expression)) > MAX_NESTING:
        return PushedFilter(None, False)
    try:
        message = bytes(expression.to_substrait(schema))
    except pa.ArrowException:
        return PushedFilter(None, False)
    functions, root = _opened(message)
    reading = _Reading(functions, schema)
    found = reading.rows(root, True)
    if () in found:
        return PushedFilter(None, reading.exact)
    terms = [[list(term) for term in alternative] for alternative in found]
    return PushedFilter(terms or _nothing(schema), reading.exact)


def columns_of(expression: pyarrow.dataset.Expression, schema: pa.Schema) -> list[str]:
    """Return the columns that an expression looks at, and perhaps some more."""
    text = str(expression)
    return [name for name in schema.names if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)]


def _nesting(text: str) -> int:
    """How deep the calls of a printed expression are nested. Each is in parentheses."""
    deepest = depth = 0
    for character in _STRINGS.sub("", text):
        depth += (character == "(") - (character == ")")
        deepest = max(deepest, depth)
    return deepest


def _nothing(schema: pa.Schema) -> list[list[list[Any]]]:
    """A filter that no row meets; one without alternatives would let all pass."""
    name = schema.names[0]
    return [[[name, "is null"], [name, "is not null"]]]


def _opened(message: bytes) -> tuple[dict[int, str], bytes]:
    """The names of the functions by number, and the expression."""
    functions, expression = {}, b""
    for number, value in fields(message):
        if number == 2 and isinstance(value, bytes):
            for function in _all(value, 3):
                functions[_number(function, 2)] = _one(function, 3).decode()
        elif number == 3 and isinstance(value, bytes):
            expression = _one(value, 1)
    return functions, expression


def _all(message: bytes, number: int) -> Iterator[bytes]:
    """Yield the messages in a field."""
    return (value for at, value in fields(message) if at == number and isinstance(value, bytes))


def _one(message: bytes, number: int) -> bytes:
    return next(_all(message, number), b"")


def _number(message: bytes, number: int) -> int:
    return next((v for at, v in fields(message) if at == number and isinstance(v, int)), 0)


def _kind(expression: bytes) -> tuple[int, bytes]:
    """Which kind of expression it is, and its message."""
    kind, body = next(fields(expression), (0, b""))
    return (kind, body) if isinstance(body, bytes) else (0, b"")


class _Unusable(ValueError):
    """A part of an expression that has no form in a ticket's filter."""


Term = tuple[Any, ...]
Alternatives = list[tuple[Term, ...]]
_EVERY: Alternatives = [()]


class _Reading:
    """Finds the rows for which an expression is true or false, or at least all of them."""

    def __init__(self, functions: dict[int, str], schema: pa.Schema) -> None:
        self.exact = True
        self._functions = functions
        self._schema = schema

    def rows(self, expression: bytes, wanted: bool) -> Alternatives:
        """Return the alternatives for the rows for which an expression is ``wanted``."""
        try:
            return self._rows(expression, wanted)
        except _Unusable:
            self.exact = False
            return _EVERY

    def _rows(self, expression: bytes, wanted: bool) -> Alternatives:
        kind, body = _kind(expression)
        if kind == _LITERAL:
            number, value = next(fields(body))
            return _EVERY if number == 1 and bool(value) == wanted else []
        if kind == _FIELD:
            return [((self._column(expression)[0], "=", wanted),)]
        if kind == _IF_THEN:
            return self._if(body, wanted)
        if kind == _ONE_OF:
            column, type_ = self._column(_one(body, 1))
            values = [_literal(option, type_) for option in _all(body, 2)]
            if wanted:
                return [((column, "in", values),)]
            # Arrow's is_in is false, not null, for a null.
            return [((column, "not in", values),), ((column, "is null"),)]
        if kind != _FUNCTION:
            raise _Unusable
        name = self._functions.get(_number(body, 1), "")
        return self._call(name, [_one(argument, 3) for argument in _all(body, 4)], wanted)

    def _call(self, name: str, of: list[bytes], wanted: bool) -> Alternatives:
        if name in ("and", "or"):
            parts = [self.rows(part, wanted) for part in of]
            return reduce(self._both, parts) if (name == "and") == wanted else self._either(parts)
        if name == "not":
            return self.rows(of[0], not wanted)
        if name in _NULL_TESTS:
            return [((self._column(of[0])[0], _NULL_TESTS[name][not wanted]),)]
        if name not in _COMPARISONS:
            raise _Unusable
        column, type_ = self._column(of[0])
        return [((column, _COMPARISONS[name][not wanted], _literal(of[1], type_)),)]

    def _column(self, expression: bytes) -> tuple[str, pa.DataType]:
        kind, body = _kind(expression)
        place = _one(_one(body, 1), 2)
        if kind != _FIELD or _one(place, 2):
            raise _Unusable  # it is a call, or inside a struct
        field = self._schema.field(_number(place, 1))
        return field.name, field.type

    def _if(self, body: bytes, wanted: bool) -> Alternatives:
        (test,) = _all(body, 1)
        condition, then, otherwise = _one(test, 1), _one(test, 2), _one(body, 2)
        return self._either(
            [
                self._both(self.rows(condition, True), self.rows(then, wanted)),
                self._both(self.rows(condition, False), self.rows(otherwise, wanted)),
            ]
        )

    def _either(self, parts: Iterable[Alternatives]) -> Alternatives:
        """Join alternatives; values of one column become one list."""
        lists: dict[str, list[Any]] = {}
        found = []
        for alternative in (alternative for part in parts for alternative in part):
            if len(alternative) == 1 and alternative[0][1] in ("=", "in"):
                column, operator, value = alternative[0]
                lists.setdefault(column, []).extend(value if operator == "in" else (value,))
            else:
                found.append(alternative)
        found += [((column, "in", values),) for column, values in lists.items()]
        if len(found) > MAX_ALTERNATIVES:
            raise _Unusable
        return _EVERY if () in found else found

    def _both(self, left: Alternatives, right: Alternatives) -> Alternatives:
        """Meet alternatives.

        DuckDB derives conditions, as in ``(a = 1 AND b = 2 OR …) AND (a = 1 OR …)``. What follows
        from the others is left out, and does not multiply them.
        """
        found: Alternatives = []
        for mine in left:
            if any(_implies(mine, other) for other in right):
                found.append(mine)
            else:
                met = (_met(mine, other) for other in right)
                found += [alternative for alternative in met if alternative is not None]
            if len(found) > MAX_ALTERNATIVES:
                self.exact = False
                return min(left, right, key=len)
        return found


def _implies(mine: Iterable[Term], other: Iterable[Term]) -> bool:
    """Return whether rows that meet all of mine meet all of the other's, if that is easy to see."""
    return all(any(_narrower(one, term) for one in mine) for term in other)


def _narrower(one: Term, term: Term) -> bool:
    return one[0] == term[0] and (
        one == term
        or (one[1] == "=" and term[1] == "in" and one[2] in term[2])
        or (one[1] != "is null" and term[1] == "is not null")
    )


def _met(mine: tuple[Term, ...], other: tuple[Term, ...]) -> tuple[Term, ...] | None:
    """Return what meets both; None if no row can."""
    found = (*(term for term in mine if not _implies(other, [term])), *other)
    nulls = {term[0] for term in found if term[1] == "is null"}
    if any(term[0] in nulls and term[1] != "is null" for term in found):
        return None
    return found


def _literal(expression: bytes, type_: pa.DataType) -> Any:
    """Return a literal as a ticket's filter writes a value of a column of this type.

    Raises:
        _Unusable: it has no such form, like a null, NaN, infinity and a year above 9999.
    """
    kind, body = _kind(expression)
    if kind != _LITERAL:
        raise _Unusable
    number, raw = next(fields(body))
    value = _integer(number, raw, type_) if isinstance(raw, int) else _other(number, raw, type_)
    if value is None:
        raise _Unusable
    return value


def _integer(number: int, raw: int, type_: pa.DataType) -> Any:
    """The value of a literal that is encoded as an integer."""
    t = pa.types
    if number == 1 and t.is_boolean(type_):
        return bool(raw)
    if number in (2, 3, 5, 7) and t.is_integer(type_):
        return signed(raw)
    try:
        if number == 16 and t.is_date32(type_):
            return (date(1970, 1, 1) + timedelta(days=signed(raw))).isoformat()
        if number in (14, 27) and t.is_timestamp(type_):
            moment = datetime(1970, 1, 1) + timedelta(microseconds=signed(raw))
            return moment.isoformat() + ("Z" if type_.tz else "")
    except OverflowError:
        return None
    return None


def _other(number: int, raw: bytes, type_: pa.DataType) -> Any:
    """The value of any other literal."""
    t = pa.types
    if number in (10, 11) and t.is_floating(type_):
        (value,) = struct.unpack("<f" if number == 10 else "<d", raw)
        return value if math.isfinite(value) else None
    if number == 12 and t.is_string(type_):
        return raw.decode()
    if number == 13 and t.is_binary(type_):
        return base64.b64encode(raw).decode()
    if number == 24 and t.is_decimal(type_) and _number(raw, 3) == type_.scale:
        units = int.from_bytes(_one(raw, 1), "little", signed=True)
        return str(Decimal(units).scaleb(-type_.scale, _DIGITS))
    if number == 33 and t.is_unsigned_integer(type_):
        return _number(_one(_one(raw, 2), 2), 1)  # a google.protobuf.UInt64Value
    return None
