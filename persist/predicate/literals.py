"""A filter's number among the values of a column's type, exactly. Pure.

A number that the type has is compared as it is. Any other lies between two values of the type, and
a comparison with it becomes one with its neighbour::

    v > 3.5 over integers     3 │ 4     v >= 4
    v > 1000 over int8      127 │       no row

So rows, bounds of files and Spark compare values of one type, and nothing is cast or rounded when a
filter is evaluated.

A number is an integer or a float, as in Python. A float is that binary number for integers and
floating-point columns, and the decimal as which it is printed for decimals: 0.05 is 5/100. A
fraction that is printed like a float32 is that float32: 0.1 finds what was written as 0.1. A
``Decimal`` is a number with more digits than a float has (:func:`number`).
"""

from __future__ import annotations

import math
from decimal import Context, Decimal
from typing import NamedTuple

import numpy as np
import pyarrow as pa

Number = int | float | Decimal

MAX_EXPONENT = 400
"""Numbers with a larger exponent are refused: their digits would fill the memory."""
MAX_DIGITS = 1000
_EXACT = Context(prec=MAX_DIGITS + 2 * MAX_EXPONENT)


class Place(NamedTuple):
    """Where a number lies among the values of a type.

    Attributes:
        below: The largest value that is not above the number; None if all values are above it.
        above: The smallest value that is not below the number; None if all values are below it.
        is_value: Whether the number is a value of the type; then it is both.
    """

    below: pa.Scalar | None
    above: pa.Scalar | None
    is_value: bool

    def comparison(self, operator: str) -> tuple[str, pa.Scalar] | None:
        """The operator and the value that compare every value of the type as the number does.

        Args:
            operator: One of ``= < <= > >=``.

        Returns:
            None if no value compares so.
        """
        if self.is_value:
            return operator, self.below
        if operator == "=":
            return None
        if operator in ("<", "<="):
            return None if self.below is None else ("<=", self.below)
        return None if self.above is None else (">=", self.above)


def number(text: str) -> float | Decimal:
    """The number of a text: the float that is printed like it, or else all of its digits."""
    nearest, digits = float(text), Decimal(text)
    return nearest if Decimal(repr(nearest)) == digits else digits


def place(value: Number, kind: pa.DataType) -> Place:
    """Where a number lies among the values of an integer, floating-point or decimal type.

    Raises:
        ValueError: It is NaN or infinite, or has too many digits.
    """
    if isinstance(value, Decimal):
        check_digits(value)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a number to compare with")
    if pa.types.is_floating(kind):
        return _among_floats(value, kind)
    if pa.types.is_decimal(kind):
        return _among_decimals(value, kind)
    low, high = integer_range(kind)
    return _among_integers(math.floor(value), math.ceil(value), low, high, kind, 0)


def check_digits(value: Decimal) -> None:
    """Raise ValueError for a number that is not finite or whose digits would be too many."""
    if not value.is_finite():
        raise ValueError(f"{value} is not a number to compare with")
    if abs(value.adjusted()) > MAX_EXPONENT or len(value.as_tuple().digits) > MAX_DIGITS:
        raise ValueError("the number has too many digits")


def integer_range(kind: pa.DataType) -> tuple[int, int]:
    """The lowest and the highest value of an integer type."""
    bits = kind.bit_width
    if pa.types.is_signed_integer(kind):
        return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return 0, 2**bits - 1


def _among_decimals(value: Number, kind: pa.DataType) -> Place:
    exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    scaled = exact.scaleb(kind.scale, _EXACT)
    highest = 10**kind.precision - 1
    return _among_integers(
        math.floor(scaled), math.ceil(scaled), -highest, highest, kind, kind.scale
    )


def _among_integers(
    floor: int, ceil: int, low: int, high: int, kind: pa.DataType, scale: int
) -> Place:
    """The place of a number between two integers, among the multiples of ``10 ** -scale``."""

    def scalar(units: int) -> pa.Scalar:
        made = Decimal(units).scaleb(-scale, _EXACT) if pa.types.is_decimal(kind) else units
        return pa.scalar(made, kind)

    below = None if floor < low else scalar(min(floor, high))
    above = None if ceil > high else scalar(max(ceil, low))
    return Place(below, above, floor == ceil and below is not None and above is not None)


def _among_floats(value: Number, kind: pa.DataType) -> Place:
    width: type[np.floating] = np.float64 if pa.types.is_float64(kind) else np.float32
    nearest = _nearest_double(value)
    if isinstance(value, Decimal) and 0 < abs(nearest) < math.inf:
        value = nearest
    with np.errstate(over="ignore", under="ignore"):
        near = width(nearest)
    is_printed = width is np.float32 and not _is_whole(value) and float(str(near)) == value
    if float(near) == value or is_printed:
        return Place(pa.scalar(near, kind), pa.scalar(near, kind), True)
    if float(near) < value:
        return Place(
            pa.scalar(near, kind), pa.scalar(np.nextafter(near, width(np.inf)), kind), False
        )
    return Place(pa.scalar(np.nextafter(near, width(-np.inf)), kind), pa.scalar(near, kind), False)


def _nearest_double(value: Number) -> float:
    try:
        return float(value)
    except OverflowError:
        return -math.inf if value < 0 else math.inf


def _is_whole(value: Number) -> bool:
    return value == math.floor(value)
