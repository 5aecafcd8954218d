"""Exact conversion of texts to values of a type. Errors name the first text that does not convert.

In addition to Arrow's syntax, blanks around a value and words for a missing value are accepted
unless the type is text (``tests/cli/test_text_inputs.py``).
"""

import bisect
import re

import pyarrow as pa
import pyarrow.compute as pc

from ingester.conversion import converted as exactly
from ingester.time_texts import FAR, far_count, has_far

NO_VALUE = ("", "NA", "N/A", "n/a", "#N/A", "#NA", "NULL", "null", "\\N")
"""Words that other tools write for a missing value; null in columns that are not text."""
_SHOWN_CHARACTERS = 80


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


def converted(
    texts: pa.Array, kind: pa.DataType, *, decimal_comma: bool = False, words: bool = True
) -> pa.Array:
    """The values of the texts; nulls stay null.

    Args:
        decimal_comma: Whether numbers have a decimal comma, as in ``1,5``.
        words: Whether blanks around a value and words for a missing one are accepted.

    Raises:
        Unreadable: The first text that is not a value of the type.
    """
    if pa.types.is_null(kind):
        return pa.nulls(len(texts))
    if is_text(kind):
        return texts if texts.type == kind else texts.cast(kind)
    if decimal_comma and (pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        texts = pc.replace_substring(texts, ",", ".")
    try:
        return _cast(texts, kind)
    except (pa.ArrowException, Unreadable):
        texts = cleaned(texts) if words else texts
    try:
        return _cast(texts, kind)
    except pa.ArrowException:
        index = _first_unreadable(texts, kind)
        text = texts[index].as_py()
        raise Unreadable(index, text, f"is not {named(kind, text)}") from None


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
    if pa.types.is_boolean(kind):  # as PostgreSQL writes them
        texts = pc.replace_substring_regex(texts, "^t$", "true")
        texts = pc.replace_substring_regex(texts, "^f$", "false")
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
            raise Unreadable(index, text, f"is not {named(kind)}: {exc}") from exc
    plain = pa.int32() if pa.types.is_date32(kind) else pa.int64()
    return pc.replace_with_mask(times, far, pa.array(counts, plain).view(kind))


def _first_unreadable(texts: pa.Array, kind: pa.DataType) -> int:
    """The index of the first text that is not a value of the type, by bisection. There is one."""
    return bisect.bisect_left(
        range(len(texts) - 1), True, key=lambda n: not readable_as(texts.slice(0, n + 1), kind)
    )


def named(kind: pa.DataType, text: str | None = None) -> str:
    """The type in messages, with what helps."""
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
