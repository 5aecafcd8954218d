"""A converted value is the same value, or it is refused; Python's exact numbers are the judge."""

from __future__ import annotations

import math
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ingester.conversion import NotExact, converted

INTEGERS = [getattr(pa, f"{sign}int{bits}")() for sign in ("", "u") for bits in (8, 16, 32, 64)]
FLOATS = [pa.float32(), pa.float64()]
LEAST_AND_MOST = {
    kind: (int(np.iinfo(str(kind)).min), int(np.iinfo(str(kind)).max)) for kind in INTEGERS
}

decimals = st.integers(1, 38).flatmap(
    lambda digits: st.integers(0, digits).map(lambda scale: pa.decimal128(digits, scale))
)
numbers = st.one_of(st.sampled_from(INTEGERS), st.sampled_from(FLOATS), decimals)


def values_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of a number's type, extremes more often than others."""
    if pa.types.is_integer(kind):
        least, most = LEAST_AND_MOST[kind]
        return st.one_of(st.integers(least, most), st.sampled_from([least, most, 0]))
    if pa.types.is_floating(kind):
        width = kind.bit_width
        limit = 2.0 ** (24 if width == 32 else 53)
        near = st.sampled_from([limit, -limit, 0.5, -0.0, 35.0, 1e10])
        return st.one_of(st.floats(width=width), near.map(np.float32 if width == 32 else float))
    most = 10**kind.precision - 1
    whole = st.one_of(st.integers(-most, most), st.sampled_from([most, -most, 0, min(35, most)]))
    return whole.map(lambda digits: Decimal(digits).scaleb(-kind.scale, _ENOUGH))


_ENOUGH = Context(prec=80)


def holds(kind: pa.DataType, value: Any) -> bool:
    """Return whether a number has an equal of the type."""
    if isinstance(value, float) and not math.isfinite(value):
        return bool(pa.types.is_floating(kind))
    exact = Fraction(value)
    if pa.types.is_integer(kind):
        least, most = LEAST_AND_MOST[kind]
        return exact.denominator == 1 and least <= exact <= most
    if pa.types.is_floating(kind):
        with np.errstate(over="ignore"):
            made = float(exact) if kind.bit_width == 64 else float(np.float32(float(exact)))
        return bool(math.isfinite(made) and Fraction(made) == exact)
    digits = exact * 10**kind.scale
    return bool(digits.denominator == 1 and abs(digits) < 10**kind.precision)


def is_long(given_as: pa.DataType, kind: pa.DataType, value: Any) -> bool:
    """Return whether an integer is beyond those that a float holds without gaps."""
    if not (pa.types.is_integer(given_as) and pa.types.is_floating(kind)):
        return False
    return bool(abs(value) > 2 ** (24 if kind.bit_width == 32 else 53))


def same(value: Any, made: Any) -> bool:
    if isinstance(value, float) and math.isnan(value):
        return isinstance(made, float) and math.isnan(made)
    if value == 0:
        return bool(made == 0)
    return bool(Fraction(value) == Fraction(made) if math.isfinite(value) else value == made)


@given(numbers, numbers, st.data())
def test_a_number_is_equal_afterwards_or_refused(
    given_as: pa.DataType, kind: pa.DataType, data: st.DataObject
) -> None:
    values = data.draw(st.lists(st.one_of(st.none(), values_of(given_as)), min_size=1, max_size=5))
    values = [float(value) if isinstance(value, np.float32) else value for value in values]
    column = pa.array(values, given_as)
    fits = [
        value is None or (holds(kind, value) and not is_long(given_as, kind, value))
        for value in column.to_pylist()
    ]
    if all(fits):
        made = converted(column, kind)
        assert made.type == kind
        for value, new in zip(column.to_pylist(), made.to_pylist(), strict=True):
            assert new is None if value is None else same(value, new), (value, new)
        nested = pa.array([column.to_pylist(), None, []], pa.list_(given_as))
        assert converted(nested, pa.list_(kind)).type == pa.list_(kind)
        return
    with pytest.raises(NotExact) as error:
        converted(column, kind)
    assert error.value.index == fits.index(False)
    inside = pa.StructArray.from_arrays([column], ["v"])
    with pytest.raises(NotExact):
        converted(inside, pa.struct([("v", kind)]))


@given(
    st.one_of(decimals, st.sampled_from(FLOATS)), st.integers(-(2**260), 2**260), st.integers(0, 40)
)
@example(pa.decimal128(38, 0), 2**256 - 1, 0)
@example(pa.decimal128(38, 0), 2**128 + 5, 0)
@example(pa.decimal128(38, 18), 341 * 10**18, 0)
@example(pa.decimal128(38, 37), 35, 0)
@example(pa.float64(), 2**53 + 1, 0)
@example(pa.float32(), 2**24 + 1, 0)
@example(pa.float32(), 10 * (2**128 - 2**103) + 1, 1)
@example(pa.float32(), 10 * (2**128 - 2**103) - 1, 1)
def test_a_text_is_the_number_it_says_or_refused(
    kind: pa.DataType, digits: int, places: int
) -> None:
    said = Decimal(digits).scaleb(-places, _ENOUGH)
    text = format(said, "f")
    column = pa.array([None, text, "0"])
    fraction = Fraction(said)
    # What is nearer to 2^128 than to the largest float32 is beyond its range.
    near_is_enough = fraction.denominator != 1 and (
        kind == pa.float64() or (kind == pa.float32() and abs(fraction) < 2**128 - 2**103)
    )
    if near_is_enough or holds(kind, said):
        made = converted(column, kind)[1].as_py()
        assert made == float(text) if near_is_enough and kind == pa.float64() else True
        assert near_is_enough or Fraction(made) == fraction
    else:
        with pytest.raises(NotExact, match="is not a value of") as error:
            converted(column, kind)
        assert error.value.index == 1


TIMES = [
    ([2**62], pa.timestamp("s"), pa.timestamp("us")),
    ([1], pa.timestamp("ns"), pa.timestamp("us")),
    ([2**31 - 1], pa.date32(), pa.timestamp("us")),
    ([86_400_000 * 5 + 1], pa.date64(), pa.date32()),
    ([b"\xff"], pa.binary(), pa.string()),
    ([2], pa.int64(), pa.bool_()),
    (["maybe"], pa.string(), pa.bool_()),
    (["1_000"], pa.string(), pa.int64()),
    (["0x5"], pa.string(), pa.decimal128(5, 1)),
    (["0xFF"], pa.string(), pa.int8()),
    (["1e400"], pa.string(), pa.float64()),
    (["-1e39"], pa.string(), pa.float32()),
    ([["1e400"]], pa.list_(pa.string()), pa.list_(pa.float64())),
    ([f"{'1' * 80}x"], pa.string(), pa.decimal128(5, 1)),
]


@pytest.mark.parametrize(("values", "given_as", "kind"), TIMES, ids=str)
def test_what_has_no_equal_is_refused_by_its_row(
    values: list[Any], given_as: pa.DataType, kind: pa.DataType
) -> None:
    column = pa.array([None, *values], given_as)
    with pytest.raises(NotExact) as error:
        converted(column, kind)
    assert error.value.index == 1
    assert error.value.value


def test_a_type_without_a_conversion_says_so() -> None:
    with pytest.raises(pa.ArrowNotImplementedError):
        converted(pa.array([1]), pa.list_(pa.int64()))


def test_many_leading_zeros_are_no_digits() -> None:
    (made,) = converted(pa.array([f"{'0' * 100}5"]), pa.decimal128(38, 37)).to_pylist()
    assert made == 5
