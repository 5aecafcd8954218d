"""A filter as it is written down, checked against a schema.

A filter is a disjunction of conjunctions of ``[column, operator, value]``.

Law of this file: pure. Whatever a filter can be refused for is refused here.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from persist.predicate.predicate import COMPARISONS, LISTS, NULL_TESTS, Predicate, Term


class BadFilter(ValueError):
    """A filter that cannot be understood; the message says where."""


def parse_predicate(
    filter_: Sequence[Sequence[Sequence[Any]]] | None, schema: pa.Schema
) -> Predicate:
    """Check a filter against a schema.

    Raises:
        BadFilter: unknown column or operator, or a value that is not of the column's type.
    """
    return Predicate([[_term(raw, schema) for raw in terms] for terms in filter_ or ()])


def _term(raw: Sequence[Any], schema: pa.Schema) -> Term:
    if len(raw) not in (2, 3) or not all(isinstance(text, str) for text in raw[:2]):
        raise BadFilter(f"filter: {list(raw)!r} is not [column, operator, value]")
    column, operator = raw[0], raw[1]
    index = schema.get_field_index(column)
    if index < 0:
        raise BadFilter(f"filter: unknown column {column!r}")
    kind = schema.field(index).type
    if operator in NULL_TESTS and len(raw) == 2:
        return Term(column, operator, (), False)
    if len(raw) == 2 or (operator not in COMPARISONS and operator not in LISTS):
        known = [*COMPARISONS, *LISTS, *NULL_TESTS]
        raise BadFilter(f"filter: {list(raw)!r}: operators are {', '.join(known)}")
    if pa.types.is_nested(kind):
        raise BadFilter(f"filter: column {column!r} of type {kind} has no comparisons")
    values = raw[2] if operator in LISTS else [raw[2]]
    if not isinstance(values, list):
        raise BadFilter(f"filter: {operator!r} takes a list of values, not {values!r}")
    scalars = tuple(_scalar(column, kind, value) for value in values if value is not None)
    return Term(column, operator, scalars, None in values)


def _scalar(column: str, kind: pa.DataType, value: object) -> pa.Scalar:
    try:
        return _typed(kind, value)
    except (pa.ArrowException, ValueError, TypeError, OverflowError, ArithmeticError) as exc:
        raise BadFilter(
            f"filter: column {column!r}: {value!r} is not a value of type {kind}{_written(kind)}"
        ) from exc


def _written(kind: pa.DataType) -> str:
    """The way to write a value of the type, where that is not plain to see."""
    if pa.types.is_date(kind):
        return "; write it as '2026-11-21'"
    if not pa.types.is_timestamp(kind):
        return ""
    if kind.tz is None:
        return "; write it as '2026-11-21T12:00:00', without a zone, which the column has not"
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
        return pa.scalar(Decimal(value), pa.decimal128(38, kind.scale))
    if t.is_timestamp(kind):
        return _timestamp(kind, value)
    return pa.scalar(value, pa.string()).cast(kind)


def _wide_integer(kind: pa.DataType, value: int) -> pa.Scalar:
    """Integers beyond the column's range still compare: as the widest type that holds both."""
    try:
        return pa.scalar(value, kind)
    except (pa.ArrowInvalid, OverflowError):
        return pa.scalar(value, pa.decimal128(38, 0))


def _timestamp(kind: pa.DataType, value: str) -> pa.Scalar:
    """ISO 8601; in a column with a time zone a text without one means UTC."""
    text = value.strip().upper()
    if len(text) == len("2026-11-21"):
        text += "T00:00:00"
    if kind.tz is None:
        return pa.scalar(text).cast(kind)
    has_zone = text.endswith("Z") or "+" in text[10:] or "-" in text[10:]
    instant = pa.scalar(text if has_zone else text + "Z").cast(pa.timestamp(kind.unit, "UTC"))
    return instant.cast(kind)
