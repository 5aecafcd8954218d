"""Values enter and leave through the one exact conversion, not through Arrow's casts.

Arrow's casts wrap decimals around and round floats. A cast in one of these rooms either cannot do
that, which the table below says, or belongs into :mod:`ingester.conversion`.
"""

from __future__ import annotations

import re

import pytest

from tests.house.test_front_pages import ROOT

ROOMS = (
    *("cli/input", "client", "copies", "followers", "postgres", "pushes"),
    *("replication", "schema", "spark", "write"),
)
CAST = re.compile(r"\.cast\(")
HARMLESS = {
    "cli/input/text_types.py": "inference; the value is compared with its text",
    "cli/input/text_values.py": "texts to text and to times, which Arrow parses exactly",
    "followers/applying.py": "keys in the field order and nullability of others",
    "followers/duckdb_catalog.py": "an instant without its zone",
    "followers/duckdb_sink.py": "a file's rows in a type that the table was widened to",
    "followers/files.py": "a file's rows in a type that the table was widened to",
    "postgres/types.py": "bytes as text",
    "postgres/copy_stream.py": "a memoryview",
    "postgres/verify/compared_texts.py": "values as text",
    "pushes/spark/frames.py": "Spark's casts of integers",
    "replication/fold.py": "keys in the nullability of others",
    "schema/align.py": "rows in a type that the table was widened to",
    "schema/expansion.py": "a storage type as its plain form",
    "schema/normalise.py": "only types that widen; times are checked beside it",
    "schema/pieces.py": "a text as its view again",
    "spark/read/columns.py": "ticks as a time; nanoseconds are cut to microseconds, as documented",
    "spark/read/filters.py": "a literal; the filter compares the result",
    "spark/read/native.py": "a NaN of Spark",
    "spark/sink/row_digest.py": "a boolean as a byte",
    "spark/source/batch.py": "a file's rows in a type that the table was widened to",
}


@pytest.mark.parametrize("room", ROOMS)
def test_no_room_casts_values_beside_the_exact_conversion(room: str) -> None:
    folder = ROOT / "ingester" / room
    found = {
        str(path.relative_to(ROOT / "ingester"))
        for path in folder.rglob("*.py")
        if CAST.search(path.read_text())
    }
    known = {path for path in HARMLESS if path.startswith(f"{room}/")}
    assert found == known, "convert with ingester.conversion, or say here why the cast is exact"
