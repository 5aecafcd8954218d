"""Types by name: ``int64``, ``decimal(20,4)``, ``list<string>``.

Names are those of Spark and of Arrow, as ``describe_table`` prints them. As in Spark, ``timestamp``
has a zone (UTC) and ``timestamp_ntz`` has none.
"""

import re
from collections.abc import Iterator

import pyarrow as pa

from ..exits import USAGE, CommandFailed

_INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
_FLOATS = ["float32", "float", "float64", "double"]
_PLAIN: dict[str, pa.DataType] = {
    name: pa.type_for_alias(name)
    for name in ["bool", "boolean", *_INTEGERS, *_FLOATS, "string", "binary", "date32"]
} | {"date": pa.date32(), "date32[day]": pa.date32()}
MAX_DEPTH = 60
"""Arrow sends no type that is nested in more than 64 levels."""
KNOWN = (
    "bool, int8 to int64, uint8 to uint64, float32, float64, string, binary, date,"
    " timestamp (UTC), timestamp_ntz (no zone), decimal(20,4), list<int64>,"
    " struct<a:int64,b:string>, map<string,int64>"
)
_DECIMAL = re.compile(r"decimal(?:128)?\((\d+)(?:,(-?\d+))?\)")
_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns)(?:,tz=([^\]]+))?\]")
_NESTED = re.compile(r"(list|array|struct|map)<(.*)>", re.DOTALL)


def parse_type(text: str, unit: str = "us") -> pa.DataType:
    """The type of this name; times without a unit get ``unit``.

    Raises:
        CommandFailed: The type is unknown; lists the known types. Exit code 2.
    """
    if text.count("<") > MAX_DEPTH:
        raise CommandFailed(f"a type is nested more than {MAX_DEPTH} levels deep", USAGE)
    name = re.sub(r"\s+", "", text)
    lower = name.lower()
    if lower in _PLAIN:
        return _PLAIN[lower]
    if lower in ("timestamp", "timestamp_ntz"):
        return pa.timestamp(unit, None if lower.endswith("ntz") else "UTC")
    if found := _DECIMAL.fullmatch(lower):
        return _decimal(text, int(found[1]), int(found[2] or 0))
    if found := _TIMESTAMP.fullmatch(name):
        return pa.timestamp(found[1], found[2])
    if found := _NESTED.fullmatch(name):
        return _nested(text, found[1].lower(), list(split_outside(found[2])), unit)
    raise CommandFailed(f"type {text.strip()!r} is unknown; known are {KNOWN}", USAGE)


def type_name(kind: pa.DataType) -> str:
    """A name that :func:`parse_type` accepts."""
    if pa.types.is_timestamp(kind):
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return "date" if pa.types.is_date(kind) else str(kind)


def parse_field(text: str, separator: str, what: str, unit: str = "us") -> tuple[str, pa.DataType]:
    """A column and its type, from ``name:type`` or ``name=type``; the name may be quoted.

    Raises:
        CommandFailed: The text has another form; exit code 2.
    """
    quoted = re.fullmatch(rf'\s*"(.*)"\s*{separator}(.*)', text, re.DOTALL)
    name, found, kind = (quoted[1], separator, quoted[2]) if quoted else text.partition(separator)
    if not found or not name.strip() or not kind.strip():
        raise CommandFailed(f"{what} {text!r} is not name{separator}type", USAGE)
    return name if quoted else name.strip(), parse_type(kind, unit)


def parse_column_types(texts: list[str]) -> dict[str, pa.DataType]:
    """Columns and their types, from texts such as ``zip=string,price=decimal(20,4)``.

    Raises:
        CommandFailed: A text has another form, or a column is repeated; exit code 2.
    """
    types: dict[str, pa.DataType] = {}
    for text in texts:
        for item in split_outside(text):
            name, kind = parse_field(item, "=", "--column-types")
            if name in types:
                raise CommandFailed(f"--column-types gives {name!r} twice", USAGE)
            types[name] = kind
    return types


def split_outside(text: str) -> Iterator[str]:
    """The parts of a text between commas that are outside brackets and quotes."""
    depth, start, quoted = 0, 0, False
    for at, char in enumerate(text):
        if char == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif char in "(<[":
            depth += 1
        elif char in ")>]":
            depth -= 1
        elif char == "," and depth == 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]


def _decimal(text: str, precision: int, scale: int) -> pa.DataType:
    if not 1 <= precision <= 38 or not 0 <= scale <= precision:
        raise CommandFailed(
            f"type {text.strip()!r}: the precision must be 1 to 38, the scale 0 to the precision",
            USAGE,
        )
    return pa.decimal128(precision, scale)


def _nested(text: str, kind: str, parts: list[str], unit: str) -> pa.DataType:
    if kind in ("list", "array") and len(parts) == 1:
        return pa.list_(parse_type(parts[0].removeprefix("item:").removeprefix("element:"), unit))
    if kind == "map" and len(parts) == 2:
        return pa.map_(*(parse_type(part, unit) for part in parts))
    if kind == "struct":
        return pa.struct([pa.field(*parse_field(part, ":", "field", unit)) for part in parts])
    raise CommandFailed(f"type {text.strip()!r} is unknown; known are {KNOWN}", USAGE)
