"""The type of a column of texts, inferred block by block without loss.

    nothing ──▶ bool | number | date ─▶ timestamp | timestamp with zone ──▶ text

A text becomes a value only if the value preserves everything in it: numbers with leading zeros stay
text, an integer beyond 64 bits becomes a decimal, and a number becomes a double only if the double
prints as the same number with as many digits (``tests/cli/test_text_inputs.py``).
"""

import enum
import re
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from .text_values import cleaned, readable_as

_EXACT_DIGITS = 15  # a double represents any decimal number of this many digits
_EXACT_INTEGER = 2**53
_MOST_DIGITS = 38  # precision of decimal128
# Quick test for numbers; candidates are then parsed.
_NUMBER = r"^-?(?:(?:0|[1-9][0-9]*)?(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|(?i:nan|inf|infinity))$"
_HEAD = 8


class TextKind(enum.Enum):
    """The kind of value that represents all texts so far."""

    NOTHING = enum.auto()
    BOOL = enum.auto()
    NUMBER = enum.auto()
    DATE = enum.auto()
    LOCAL = enum.auto()
    INSTANT = enum.auto()
    TEXT = enum.auto()


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
                self._add_integers(integers)
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

    def _add_integers(self, values: pa.Array) -> None:
        ends = pc.min_max(values).as_py()
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
        self.kind = TextKind.NOTHING
        self._numbers = Numbers() if numbers else None
        self._comma = decimal_comma
        self._unit = "us"
        self._words = False

    def add(self, texts: pa.Array) -> None:
        """Add these texts. Nulls are ignored."""
        if self.kind is TextKind.TEXT:
            return
        texts = texts.drop_null()
        if not len(texts) or (not self._words and self._adds(texts)):
            return
        rest = cleaned(texts) if self._numbers is not None else texts
        rest = rest.drop_null()
        self._words = self._words or len(rest) < len(texts)
        if len(rest) and not self._adds(rest):
            self.kind = TextKind.TEXT

    def type(self) -> pa.DataType:
        """The type that holds all texts; null if there are none."""
        if self.kind is TextKind.NOTHING:
            return pa.string() if self._words else pa.null()
        if self.kind is TextKind.NUMBER:
            assert self._numbers is not None
            return self._numbers.type()
        return {
            TextKind.BOOL: pa.bool_(),
            TextKind.DATE: pa.date32(),
            TextKind.LOCAL: pa.timestamp(self._unit),
            TextKind.INSTANT: pa.timestamp(self._unit, "UTC"),
            TextKind.TEXT: pa.string(),
        }[self.kind]

    def _adds(self, texts: pa.Array) -> bool:
        """Whether these texts fit the texts seen before."""
        known = self.kind
        if known in (TextKind.NOTHING, TextKind.NUMBER) and self._add_numbers(texts):
            self.kind = TextKind.NUMBER
        elif known in (TextKind.NOTHING, TextKind.BOOL) and self._numbers and _are_bool(texts):
            self.kind = TextKind.BOOL
        elif known in (TextKind.NOTHING, TextKind.DATE) and _are_all(texts, pa.date32()):
            self.kind = TextKind.DATE
        elif known in (TextKind.NOTHING, TextKind.DATE, TextKind.LOCAL) and self._are_times(
            texts, None
        ):
            self.kind = TextKind.LOCAL
        elif known in (TextKind.NOTHING, TextKind.INSTANT) and self._are_times(texts, "UTC"):
            self.kind = TextKind.INSTANT
        else:
            return False
        return True

    def _add_numbers(self, texts: pa.Array) -> bool:
        if self._numbers is None or not _might_be(_NUMBER, texts, self._comma):
            return False
        if self._comma:
            texts = pc.replace_substring(texts, ",", ".")
        return self._numbers.add(texts)

    def _are_times(self, texts: pa.Array, zone: str | None) -> bool:
        units = ("us", "ns") if self._unit == "us" else ("ns",)
        for unit in units:
            if _are_all(texts, pa.timestamp(unit, zone)):
                self._unit = unit
                return True
        return False


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


def _might_be(pattern: str, texts: pa.Array, comma: bool) -> bool:
    """Whether the first few texts match, which excludes most columns that are not numbers."""
    head = texts.slice(0, _HEAD).to_pylist()
    return all(re.match(pattern, text.replace(",", ".") if comma else text) for text in head)


def _are_bool(texts: pa.Array) -> bool:
    return bool(pc.all(pc.match_substring_regex(texts, r"^(?i:true|false)$")).as_py())


def _are_all(texts: pa.Array, kind: pa.DataType) -> bool:
    return readable_as(texts.slice(0, _HEAD), kind) and readable_as(texts, kind)
