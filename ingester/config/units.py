"""Parses and formats sizes and durations such as ``64MiB`` and ``5m``.

A size is bytes (``int``), a duration seconds (``float``). A number without a unit is bytes or
seconds. ``KiB, MiB, GiB, TiB`` are powers of 1024, ``kB, MB, GB, TB`` powers of 1000.
"""

import re

SIZE_UNITS = {
    "": 1,
    "B": 1,
    "kB": 1000,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
    "TiB": 1024**4,
}
DURATION_UNITS = {"us": 1e-6, "ms": 1e-3, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

_NUMBER_AND_UNIT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([A-Za-z]*)\s*")
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*(us|ms|s|m|h|d)\s*")


def parse_size(value: object) -> int:
    """Return the bytes of ``value`` (``"64MiB"``, ``"1.5 GB"``, ``4096``).

    Raises:
        ValueError: not a size, negative, or not a whole number of bytes.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"not a size: {value!r} (write it as '64MiB' or as bytes)")
    if isinstance(value, str):
        match = _NUMBER_AND_UNIT.fullmatch(value)
        if match is None or match[2] not in SIZE_UNITS:
            raise ValueError(f"not a size: {value!r} (write it as '64MiB' or as bytes)")
        if "." not in match[1]:
            return int(match[1]) * SIZE_UNITS[match[2]]  # no rounding through a float
        number = float(match[1]) * SIZE_UNITS[match[2]]
    else:
        number = value
    if number < 0 or number != number // 1:
        raise ValueError(f"not a whole number of bytes: {value!r}")
    return int(number)


def parse_duration(value: object) -> float:
    """Return the seconds of ``value`` (``"5m"``, ``"1h30m"``, ``"250ms"``, ``2.5``).

    Raises:
        ValueError: not a duration, or negative.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"not a duration: {value!r} (write it as '5m' or as seconds)")
    if isinstance(value, int | float):
        if not 0 <= value < float("inf"):
            raise ValueError(f"not a duration: {value!r}")
        return float(value)
    text = value.strip()
    if _NUMBER_AND_UNIT.fullmatch(text) and text[-1].isdigit():
        return float(text)
    parts = list(_DURATION_PART.finditer(text))
    if not text or "".join(part[0] for part in parts) != text:
        raise ValueError(f"not a duration: {value!r} (write it as '5m', '250ms' or '1h30m')")
    return sum(float(part[1]) * DURATION_UNITS[part[2]] for part in parts)


def parse_percent(text: str) -> float | None:
    """Return the fraction (``0.5`` for ``"50%"`` or ``"50 %"``), or None."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*", text)
    return None if match is None else float(match[1]) / 100


def format_size(size_bytes: int) -> str:
    """Return the shortest exact text that :func:`parse_size` reads as ``size_bytes``."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size_bytes and size_bytes % SIZE_UNITS[unit] == 0:
            return f"{size_bytes // SIZE_UNITS[unit]}{unit}"
    return str(size_bytes)


def format_duration(duration_s: float) -> str:
    """Return the shortest exact text that :func:`parse_duration` reads as ``duration_s``."""
    for unit in ("d", "h", "m"):
        if duration_s and duration_s % DURATION_UNITS[unit] == 0:
            return f"{int(duration_s // DURATION_UNITS[unit])}{unit}"
    if duration_s == int(duration_s):
        return f"{int(duration_s)}s"
    milliseconds = round(duration_s * 1000)
    return f"{milliseconds}ms" if milliseconds / 1000 == duration_s else f"{duration_s!r}"
