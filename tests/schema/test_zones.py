"""Time zones that Arrow, Python, Spark and DuckDB all read, and others that are refused."""

from __future__ import annotations

import zoneinfo

import pyarrow as pa
import pytest

from ingester.errors import BadRequest
from ingester.schema import table_type
from ingester.schema.types import is_zone

KNOWN = ["UTC", "GMT", "Etc/UTC", "Etc/GMT+5", "Europe/Berlin", "US/Pacific", "EST5EDT", "Zulu"]
OFFSETS = ["+00:00", "-00:00", "+01:00", "-03:30", "+14:00", "-18:00"]
NOT_EVERYWHERE = [
    *("Z", "utc", "UTC+1", "UTC+01:00", "GMT+1", "PST", "Mars/Phobos", "europe/berlin"),
    *("+1", "+01", "+0100", "+1:00", "+18:01", "+24:00", "+01:60", "+01:00:30", "+ab:cd", "-"),
    *("localtime", "Factory", "posix/Europe/Berlin", "../etc/passwd", "America", " ", "\0", "é"),
]


@pytest.mark.parametrize("name", KNOWN + OFFSETS)
def test_a_zone_that_all_of_them_read_is_taken(name: str) -> None:
    assert is_zone(name)
    kind = pa.timestamp("ms", name)
    assert table_type("c", pa.list_(kind), "us") == pa.list_(pa.timestamp("us", name))
    assert pa.array([0], pa.int64()).cast(kind).to_pylist()[0].timestamp() == 0


@pytest.mark.parametrize("name", NOT_EVERYWHERE)
def test_a_zone_that_one_of_them_does_not_read_is_refused_with_what_helps(name: str) -> None:
    assert not is_zone(name)
    kind = pa.dictionary(pa.int8(), pa.timestamp("us", name))
    with pytest.raises(BadRequest, match=r"(?s)'when': '.*'UTC'.*'\+01:00'") as error:
        table_type("when", pa.struct({"a": kind}), "us")
    assert repr(name) in str(error.value)


def test_every_name_of_the_database_is_a_zone() -> None:
    names = zoneinfo.available_timezones() - {"Factory", "localtime"}
    assert {name for name in names if not is_zone(name)} == set()


def test_an_empty_zone_is_none_at_all() -> None:
    assert table_type("c", pa.timestamp("us", ""), "us") == pa.timestamp("us")
