"""Dates and timestamps to ISO 8601 text and back, for every year that their types can hold.

    0001-01-01 … 9999-12-31       four digits, by Arrow
    294247-01-10, -290307-01-01   more digits or a minus sign, in the proleptic Gregorian calendar

Neither Arrow nor the standard library covers these years: Arrow's text counts years in 16 bits, so
57859 becomes -7677, and Python's dates end at 9999. Year 0 is 1 BC. An instant is written in UTC
with Z, because historical zone offsets have seconds, which ISO 8601 cannot express
(``tests/cli/test_output_values.py``).
"""

import datetime
import re

import pyarrow as pa
import pyarrow.compute as pc

_DAY_S = 86_400
# Python's dates end at 9999; the Gregorian calendar repeats every 400 years.
_ERA_YEARS, _ERA_DAYS, _DAYS_TO_2000 = 400, 146_097, 10_957
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
FAR = r"^(?:(?:-\d{4}|-?[1-9]\d{4,6})-\d\d-\d\d|1677-09-21)"
"""Beginnings of text that Arrow does not parse: years outside 0 to 9999, and the earliest
nanosecond timestamps."""
_TIME = re.compile(
    r"(-?(?:\d{4}|[1-9]\d{4,6}))-(\d\d)-(\d\d)"
    r"(?:[ T](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?(Z|[+-]\d\d:?(?:\d\d)?)?)?"
)


def time_texts(column: pa.Array, separator: str) -> pa.Array:
    """Dates or timestamps as text, with ``separator`` between date and time of day."""
    kind = column.type
    if pa.types.is_date32(kind):
        counts, scale = column.view(pa.int32()).cast(pa.int64()), 1
    else:
        counts = column.view(pa.int64())
        scale = _DAY_S * _PER_SECOND[kind.unit]
        # Without its zone: the count is in UTC.
        column = counts.view(pa.timestamp(kind.unit))
    first, end = _FIRST_DAY * scale, (_LAST_DAY + 1) * scale
    ends = pc.min_max(counts)  # compared in Python: for nanoseconds the bounds exceed an int64
    if not ends["min"].is_valid or (ends["min"].as_py() >= first and ends["max"].as_py() < end):
        texts = column.cast(pa.string())
    else:
        near = pc.and_(pc.greater_equal(counts, first), pc.less(counts, end))
        texts = pc.if_else(near, column, pa.scalar(None, column.type)).cast(pa.string())
        far = pc.fill_null(pc.invert(near), False)
        said = [far_text(count, kind) for count in counts.filter(far).to_pylist()]
        texts = pc.replace_with_mask(texts, far, pa.array(said, pa.string()))
    if separator != " ":
        texts = pc.replace_substring(texts, " ", separator)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        texts = pc.binary_join_element_wise(texts, "Z", "")
    return texts


def has_far(texts: pa.Array) -> bool:
    """Whether any of the texts is a time that Arrow does not parse."""
    return bool(pc.any(pc.match_substring_regex(texts, FAR)).as_py())


def far_text(count: int, kind: pa.DataType) -> str:
    """One date or timestamp as in :func:`time_texts`, without its zone."""
    if pa.types.is_date32(kind):
        return _date(count)
    per_second = _PER_SECOND[kind.unit]
    seconds, fraction = divmod(count, per_second)
    days, second = divmod(seconds, _DAY_S)
    digits = len(str(per_second)) - 1
    tail = f".{fraction:0{digits}}" if digits else ""
    return f"{_date(days)} {second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}{tail}"


def far_count(text: str, kind: pa.DataType) -> int:
    """The date or timestamp in the unit of its type.

    Raises:
        ValueError: The text is invalid, out of the type's range, or needs a finer unit.
    """
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError("it is not ISO 8601")
    try:
        days = _days(*(int(found[n]) for n in (1, 2, 3)))
    except ValueError:
        raise ValueError("the day does not exist") from None
    if pa.types.is_date32(kind):
        if found[4] is not None:
            raise ValueError("it has a time of day")
        return _in_reach(days, 32)
    if (found[8] is not None) != (kind.tz is not None):
        raise ValueError("it has a zone" if found[8] else "it has no zone")
    hour, minute, second = (int(found[n] or 0) for n in (4, 5, 6))
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError("the time of day does not exist")
    per_second = _PER_SECOND[kind.unit]
    nanoseconds = int((found[7] or "").ljust(9, "0"))
    fraction, lost = divmod(nanoseconds * per_second, 1_000_000_000)
    if lost:
        raise ValueError(f"its fraction is finer than {kind.unit}")
    seconds = days * _DAY_S + hour * 3600 + minute * 60 + second - _offset_s(found[8])
    return _in_reach(seconds * per_second + fraction, 64)


def _in_reach(count: int, bits: int) -> int:
    if not -(1 << bits - 1) <= count < 1 << bits - 1:
        raise ValueError("it is out of the type's range")
    return count


def _offset_s(zone: str | None) -> int:
    if zone is None or zone == "Z":
        return 0
    digits = zone[1:].replace(":", "").ljust(4, "0")
    seconds = int(digits[:2]) * 3600 + int(digits[2:]) * 60
    return -seconds if zone[0] == "-" else seconds


def _date(days: int) -> str:
    era, day_of_era = divmod(days - _DAYS_TO_2000, _ERA_DAYS)
    date = datetime.date(2000, 1, 1) + datetime.timedelta(day_of_era)
    year = date.year + era * _ERA_YEARS
    return f"{'-' if year < 0 else ''}{abs(year):04}-{date.month:02}-{date.day:02}"


def _days(year: int, month: int, day: int) -> int:
    """Days since 1970. Raises ValueError if the date does not exist."""
    era, year_of_era = divmod(year - 2000, _ERA_YEARS)
    date = datetime.date(2000 + year_of_era, month, day)
    return (date - datetime.date(1970, 1, 1)).days + era * _ERA_DAYS
