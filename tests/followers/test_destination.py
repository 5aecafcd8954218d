"""Destinations by name, and user-defined sink classes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from ingester.client.errors import InvalidRequest
from ingester.followers.destination import open_destination
from ingester.followers.duckdb_sink import DuckDBSink
from ingester.followers.parquet_sink import ParquetSink
from ingester.followers.sink import FollowedTable

TABLE = FollowedTable("shop", "visits", 1, pa.schema([("id", pa.int64())]))
GOOD = """
from ingester.followers.sink import FollowerSink
class Sink(FollowerSink):
    def __init__(self, table):
        self.table = table
    def on_start_version(self, partitions, is_current): pass
    def put(self, rows): pass
    def delete(self, keys): pass
    def on_end_version(self, current): pass
class Outer:
    Inner = Sink
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory for the user's modules."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_each_kind_makes_its_sinks(here: Path) -> None:
    (here / "mine.py").write_text(GOOD)
    made = []
    for text in (
        "duckdb:c.duckdb",
        "parquet:folder",
        "python:mine:Sink",
        "python:mine:Outer.Inner",
    ):
        destination = open_destination(text)
        made.append(destination.sink(TABLE))
        made[-1].close()
        destination.close()
    kinds = [type(sink).__name__ for sink in made]
    assert isinstance(made[0], DuckDBSink)
    assert isinstance(made[1], ParquetSink)
    assert kinds[2:] == ["Sink", "Sink"]


@pytest.mark.parametrize("text", ["", "duckdb", "duckdb:", "copy.duckdb", "s3://b/x", "mysql:x"])
def test_a_text_that_names_no_place_is_refused_with_those_that_do(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a destination: expected duckdb:FILE"):
        open_destination(text)


@pytest.mark.parametrize(
    ("name", "module", "message"),
    [
        ("mine", GOOD, r"'mine' is not of the form package\.module:Class"),
        ("mine:", GOOD, "not of the form"),
        ("yours:Sink", GOOD, "module 'yours' was not found"),
        ("mine.sub:Sink", GOOD, r"'mine' is not a package|was not found"),
        ("mine:Other", GOOD, "module 'mine' has no class 'Other'"),
        ("mine:Outer", GOOD, "is not a subclass of ingester.followers.sink.FollowerSink"),
        ("mine:FollowerSink", GOOD, "lacks delete, on_end_version, on_start_version, put"),
        ("mine:Sink", "import nowhere_at_all", r"'mine' cannot be imported: .*nowhere_at_all"),
        ("mine:Sink", "def", "'mine' cannot be imported: .*syntax"),
        ("mine:Sink", "1 / 0", "'mine' cannot be imported: division by zero"),
        ("mine:Sink", "raise SystemExit(3)", "'mine' cannot be imported: 3"),
        (
            "mine:Sink",
            GOOD.replace("def put(self, rows)", "def put(self)"),
            r"mine:Sink\.put\(self\) cannot be called with 1 argument: too many positional",
        ),
        (
            "mine:Sink",
            GOOD.replace("def put(self, rows)", "def put(self, rows, more)"),
            r"mine:Sink\.put\(self, rows, more\) cannot be called with 1 argument: missing a",
        ),
        (
            "mine:Sink",
            GOOD.replace("def put(self, rows)", "async def put(self, rows)"),
            "mine:Sink.put is a coroutine",
        ),
        (
            "mine:Sink",
            GOOD.replace("def put(self, rows): pass", "put = 3"),
            "mine:Sink.put is not a method",
        ),
        (
            "mine:Sink",
            GOOD.replace("(self, table)", "(self)"),
            "mine:Sink.* cannot be called with the followed table",
        ),
    ],
)
def test_a_class_that_cannot_be_a_sink_is_refused_by_what_is_wrong(
    here: Path, name: str, module: str, message: str
) -> None:
    (here / "mine.py").write_text(module)
    with pytest.raises(InvalidRequest, match=message):
        open_destination(f"python:{name}")


def test_a_class_that_raises_when_it_is_made_is_named(here: Path) -> None:
    (here / "mine.py").write_text(GOOD.replace("self.table = table", "raise KeyError('no host')"))
    with pytest.raises(InvalidRequest, match=r"mine:Sink cannot be made for visits: 'no host'"):
        open_destination("python:mine:Sink").sink(TABLE)
