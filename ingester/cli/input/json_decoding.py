"""Lines of JSON as objects, exactly: no number is rounded, and no name is left out.

    whole lines ─┬─▶ msgspec, and a check that nothing got lost ──────▶ objects
                 └─▶ the standard library, which says what is wrong ─▶ objects

A number with a fraction or an exponent stays as it is written (``msgspec.Raw``)
(``tests/cli/test_text_inputs.py``).
"""

import json
import re
from typing import Any

import msgspec

from .text_values import Unreadable

_ENCODER = msgspec.json.Encoder()
_OBJECTS = msgspec.json.Decoder(dict[str, Any], float_hook=msgspec.Raw)
_CELLS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_OBJECT = re.compile(r"\S")
_NEGATIVE_ZERO = re.compile(rb"-0\s*[,}\]]")


class Repeated(dict[str, Any]):
    """An object that has a name twice."""

    name: str


KINDS = {
    bool: "a boolean",
    int: "a number",
    msgspec.Raw: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
}
"""JSON's types in messages."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        made = Repeated(made)
        names = [name for name, _ in pairs]
        made.name = next(name for name in names if names.count(name) > 1)
    return made


def _integer(text: str) -> int | msgspec.Raw:
    return msgspec.Raw(text) if text == "-0" or len(text) > 4_000 else int(text)


_EXACT = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_int=_integer,
    parse_float=msgspec.Raw,
    parse_constant=msgspec.Raw,
)


def objects_of(text: bytes) -> list[dict[str, Any]]:
    """The objects of whole lines.

    Raises:
        Unreadable: A line is not an object, or an object has a name twice.
    """
    try:
        rows = _OBJECTS.decode_lines(text)
        if _is_whole(text, rows):
            return rows
    except (msgspec.DecodeError, RecursionError):
        pass
    return _exactly(text.decode())


def _is_whole(text: bytes, rows: list[dict[str, Any]]) -> bool:
    """Whether the rows have all that is in the text.

    msgspec keeps only the last member of a name, and then the rows have fewer quotes than the text.
    An escaped quote, ``\\u0022``, makes the text look as if it had more.
    """
    quotes = text.count(b'"') + text.count(b"\\u0022")
    return _ENCODER.encode_lines(rows).count(b'"') == quotes and not _NEGATIVE_ZERO.search(text)


def _exactly(text: str) -> list[dict[str, Any]]:
    """As :func:`objects_of`, by a slower parser that also reads NaN and tells what it refuses."""
    rows: list[dict[str, Any]] = []
    at = 0
    while found := _OBJECT.search(text, at):
        start = found.start()
        try:
            row, at = decoded(text, start)
        except ValueError as exc:
            raise Unreadable(len(rows), _line(text, start), f"is not JSON: {exc}") from exc
        if isinstance(row, Repeated):
            why = f"has the name {row.name!r} twice; an object may have a name once"
            raise Unreadable(len(rows), _line(text, start), why)
        if not isinstance(row, dict):
            raise Unreadable(len(rows), _line(text, start), "is not an object")
        rows.append(row)
    return rows


def decoded(text: str, start: int = 0) -> tuple[Any, int]:
    """A JSON value, and where it ends. Raises ValueError."""
    try:
        value, end = _EXACT.raw_decode(text, start)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False, default=str).encode()
    except json.JSONDecodeError as exc:
        raise ValueError(exc.msg) from exc
    except UnicodeEncodeError:
        raise ValueError("it has half of a surrogate pair") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value, end


def _line(text: str, start: int) -> str:
    return text[start:].split("\n", 1)[0]


def written(value: Any) -> str:
    """A value as JSON, for messages; three dots for one that is nested too deeply."""
    try:
        return _ENCODER.encode(value).decode()
    except RecursionError:
        return "…"


def as_written(text: bytes, name: str, values: list[Any]) -> list[str | None]:
    """A column's values as they are written in these lines. Strings stay.

    Raises:
        Unreadable: There are lists or objects, and a line is not one object, or has NaN, which
            msgspec does not read.
    """
    if {list, dict, Repeated}.isdisjoint(map(type, values)):
        return [v if v is None or isinstance(v, str) else written(v) for v in values]
    cells: list[str | None] = []
    for line, value in zip(filter(bytes.strip, text.splitlines()), values, strict=False):
        try:
            cell = _CELLS.decode(line).get(name, msgspec.Raw(b"null"))
        except (msgspec.DecodeError, RecursionError) as exc:
            why = f"has an object or list that cannot be kept as text: {exc}"
            raise Unreadable(len(cells), line.decode(), why) from exc
        is_kept = value is None or isinstance(value, str)
        cells.append(value if is_kept else bytes(cell).decode())
    return cells
