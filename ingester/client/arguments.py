"""What callers pass, checked before anything is sent: each refusal says what to pass. Pure."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

import pyarrow as pa

from .errors import InvalidRequest

MAX_SEQUENCE = 2**63 - 1


def text(what: str, value: Any) -> str:
    """``value``, which is text."""
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"{what}: expected a name, not {value!r}")
    return value


def names(what: str, value: Any, example: str) -> list[str] | None:
    """A list of texts; None where there is none."""
    if value is None:
        return None
    if isinstance(value, str):
        raise InvalidRequest(f"{what}={value!r}: expected a list, as {what}=[{value!r}]")
    listed = list(value) if isinstance(value, Iterable) else [value]
    if isinstance(value, Mapping) or not all(isinstance(name, str) for name in listed):
        raise InvalidRequest(f"{what}={value!r}: expected a list of names, as {what}={example}")
    return listed


def one_of(what: str, value: Any, choices: tuple[str, ...]) -> None:
    """Refuse what is no choice, with the one that was meant."""
    if value not in choices:
        close = get_close_matches(value, choices, 1) if isinstance(value, str) else []
        meant = f"; did you mean {close[0]!r}?" if close else ""
        raise InvalidRequest(f"{what}={value!r}: expected one of {', '.join(choices)}{meant}")


def integer(what: str, value: Any, least: int, most: int = MAX_SEQUENCE) -> int | None:
    """A number in its range; None where there is none."""
    if value is None:
        return None
    if not hasattr(value, "__index__") or isinstance(value, bool):
        raise InvalidRequest(f"{what}={value!r}: expected an integer")
    number: int = value.__index__()  # of numpy, too
    if not least <= number <= most:
        limit = f"at least {least}" if number < least else f"at most {most}"
        raise InvalidRequest(f"{what}={value!r}: expected {limit}")
    return number


def seconds(what: str, value: Any) -> float:
    """A span of time."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise InvalidRequest(f"{what}={value!r}: expected seconds, as {what}=30.0")
    return float(value)


def schema(value: Any) -> pa.Schema:
    """An Arrow schema, or what says one through Arrow's C data interface."""
    if isinstance(value, pa.Schema):
        return value
    if isinstance(getattr(value, "schema", None), pa.Schema):
        kind = type(value).__name__
        raise InvalidRequest(f"schema: expected a schema, not a {kind}: pass its .schema")
    if isinstance(value, Mapping):
        raise InvalidRequest(
            "schema: expected a pyarrow.Schema, not a dict:"
            " pyarrow.schema({'time': pyarrow.timestamp('us', 'UTC'), 'host': pyarrow.string()})"
        )
    if hasattr(value, "__arrow_c_schema__"):
        return pa.schema(value)
    raise InvalidRequest(
        f"schema: expected a pyarrow.Schema, as pyarrow.schema({{'v': pyarrow.float64()}}), not a"
        f" {type(value).__name__}"
    )
