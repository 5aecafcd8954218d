"""The type of a column of texts, inferred block by block without loss.

    nothing ──▶ bool | number | date ─▶ timestamp | timestamp with zone ──▶ text

A text becomes a value only if the value preserves everything in it: numbers with leading zeros stay
text, an integer beyond 64 bits becomes a decimal, and a number becomes a double only if the double
prints as the same number with as many digits (``tests/cli/test_text_inputs.py``).
"""

import re
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from .text_values import cleaned, is_text, readable_as

_EXACT_DIGITS = 15  # a double represents any decimal number of this many digits
_EXACT_INTEGER = 2**53
_MOST_DIGITS = 38  # precision of decimal128
# Quick test of the first texts; candidates are then parsed.
_NUMBERS = r"^-?(?:(?:0|[1-9][0-9]*)?(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|(?i:nan|inf|infinity))$"
_HEAD = 8


# Types of text in the order of preference. Any column may begin with any of them.
_NUMBER, _LOCAL, _INSTANT = (
    pa.float64(),  # or another one: see Numbers
    (pa.timestamp("us"), pa.timestamp("ns")),
    (pa.timestamp("us", "UTC"), pa.timestamp("ns", "UTC")),
)
_KINDS = (_NUMBER, pa.bool_(), pa.date32(), *_LOCAL, *_INSTANT)
_WIDER = {pa.date32(): _LOCAL, _LOCAL[0]: _LOCAL[1:], _INSTANT[0]: _INSTANT[1:]}
"""Types that also hold all values of a type."""


class Numbers:
    """The numbers of a column, and which numeric types hold all of them."""

    def __init__(self) -> None:
        self.whole = True
        self.in_int64 = True
        self.in_double = True
        self.plain = True
        """Whether no number has an exponent or is NaN, so a decimal can hold all."""
        self.whole_digits = 0
        self.scale = 0

    def add(self, texts: pa.Array) -> bool:
        """Add these texts if all are numbers. Returns whether they are."""
        # A failing cast scans all values, so try integers only if the first ones are.
        if self.whole and self.in_int64 and readable_as(texts.slice(0, _HEAD), pa.int64()):
            try:
                integers = texts.cast(pa.int64())
            except pa.ArrowException:
                integers = None
            if integers is not None and integers.cast(pa.string()).equals(texts):
                self.add_integers(integers)
                return True
        try:
            values = texts.cast(pa.float64())
        except pa.ArrowException:
            return False
        if pc.any(pc.match_substring_regex(texts, "^-?0[0-9]")).as_py():
            return False
        self._add_numbers(texts, values)
        return True

    def type(self) -> pa.DataType:
        """The narrowest type that holds all numbers without loss."""
        if self.whole and self.plain and self.in_int64:
            return pa.int64()
        if self.whole and self.plain and self.whole_digits <= _MOST_DIGITS:
            return pa.decimal128(_MOST_DIGITS, 0)
        if self.in_double:
            return pa.float64()
        if self.plain and self.whole_digits + self.scale <= _MOST_DIGITS:
            return pa.decimal128(_MOST_DIGITS, self.scale)
        return pa.string()

    def add_integers(self, values: pa.Array) -> None:
        """Add these numbers, an int64 column."""
        ends = pc.min_max(values).as_py()
        if ends["min"] is None:
            return
        largest = max(abs(ends["min"]), abs(ends["max"]))
        self.whole_digits = max(self.whole_digits, len(str(largest)))
        if largest > _EXACT_INTEGER:
            self.in_double = False

    def _add_numbers(self, texts: pa.Array, values: pa.Array) -> None:
        lengths = pc.utf8_length(texts)
        points = pc.find_substring(texts, ".")
        has_point = pc.greater_equal(points, 0)
        doubtful = pc.greater(lengths, _EXACT_DIGITS)
        fractional = has_point
        if _has_letters(texts):
            exponents = pc.match_substring_regex(texts, "[eEnN]")
            self.plain = self.plain and not pc.any(exponents).as_py()
            fractional = pc.or_(has_point, exponents)
            doubtful = pc.or_(doubtful, exponents)
        if not pc.all(fractional).as_py():
            integers = texts.filter(pc.invert(fractional))
            self.in_int64 = self.in_int64 and readable_as(integers, pa.int64())
        if pc.any(pc.or_(fractional, pc.equal(texts, "-0"))).as_py():
            self.whole = False
        signs = pc.cast(pc.starts_with(texts, "-"), pa.int32())
        before = pc.subtract(pc.if_else(has_point, points, lengths), signs)
        behind = pc.if_else(has_point, pc.subtract(pc.subtract(lengths, points), 1), 0)
        self.whole_digits = max(self.whole_digits, pc.max(before).as_py())
        self.scale = max(self.scale, pc.max(behind).as_py())
        if self.in_double:
            self.in_double = _survive(texts.filter(doubtful), values.filter(doubtful))


class TextColumn:
    """The texts of one column so far.

    Args:
        numbers: Whether texts may be numbers and booleans; JSON strings are not.
        decimal_comma: Whether numbers have a decimal comma, as in ``1,5``.
    """

    def __init__(self, *, numbers: bool = True, decimal_comma: bool = False) -> None:
        self._numbers = Numbers() if numbers else None
        self._comma = decimal_comma
        self._kind: pa.DataType | None = None
        self._words = False

    def add(self, texts: pa.Array) -> None:
        """Add these texts. Nulls are ignored."""
        if self._kind is not None and is_text(self._kind):
            return
        texts = texts.drop_null()
        if not len(texts) or (not self._words and self._adds(texts)):
            return
        rest = cleaned(texts).drop_null() if self._numbers is not None else texts
        self._words = self._words or len(rest) < len(texts)
        if len(rest) and not self._adds(rest):
            self._kind = pa.string()

    def type(self) -> pa.DataType:
        """The type that holds all texts; null if there are none."""
        if self._kind is None:
            return pa.string() if self._words else pa.null()
        if self._kind == _NUMBER and self._numbers is not None:
            return self._numbers.type()
        return self._kind

    def _adds(self, texts: pa.Array) -> bool:
        """Whether these texts fit the texts seen before."""
        kinds = _KINDS if self._kind is None else (self._kind, *_WIDER.get(self._kind, ()))
        found = next((kind for kind in kinds if self._are(texts, kind)), None)
        self._kind = self._kind if found is None else found
        return found is not None

    def _are(self, texts: pa.Array, kind: pa.DataType) -> bool:
        if kind == _NUMBER or pa.types.is_boolean(kind):
            if self._numbers is None:
                return False
            return _are_bool(texts) if kind != _NUMBER else self._add_numbers(texts)
        return readable_as(texts.slice(0, _HEAD), kind) and readable_as(texts, kind)

    def _add_numbers(self, texts: pa.Array) -> bool:
        if self._comma:
            texts = pc.replace_substring(texts, ",", ".")
        head = texts.slice(0, _HEAD).to_pylist()
        if self._numbers is None or not all(re.match(_NUMBERS, text) for text in head):
            return False
        return self._numbers.add(texts)


def _has_letters(texts: pa.Array) -> bool:
    """Whether the texts may include an exponent or a word, by a scan of their bytes."""
    data = memoryview(texts.buffers()[2] or b"").tobytes()
    return any(letter in data for letter in (b"e", b"E", b"n", b"N"))


def survives(number: str) -> bool:
    """Whether a double, printed with as many digits, is the same number."""
    value, exact = float(number), Decimal(number)
    if not exact.is_finite():
        return True
    digits = len(exact.as_tuple().digits)
    return Decimal(f"{value:.{max(digits - 1, 0)}e}") == exact


def _survive(texts: pa.Array, values: pa.Array) -> bool:
    # Most programs print the shortest text that parses to the same double, as Arrow does.
    other = pc.not_equal(values.cast(texts.type), texts)
    return all(map(survives, texts.filter(other).to_pylist()))


def _are_bool(texts: pa.Array) -> bool:
    return bool(pc.all(pc.match_substring_regex(texts, r"^(?i:true|false)$")).as_py())
