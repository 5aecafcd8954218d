"""``ingester publish``: on, off, status and now; what its refusals advise is done as they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

from persist.manifest import read_pins
from persist.store import open_store
from persist.table import TableDefinition
from tests.cli.conftest import run_command
from tests.persist.publish.tables import BuiltTable

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "name": [str(i) for i in ids]}, SCHEMA)


class Place:
    """A store with a table of two versions."""

    def __init__(self, folder: Path, schema: pa.Schema = SCHEMA) -> None:
        self.folder = folder
        self.url = f"file://{folder}/store"
        self.table = BuiltTable(open_store(self.url), schema)

    def run(self, *words: str, code: int = 0) -> tuple[Any, str]:
        """What the command prints with --json, and its messages."""
        done = run_command("publish", *words, "--json", cwd=self.folder)
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout or b"null"), done.stderr.decode()

    def ids(self) -> tuple[list[int], list[int]]:
        """The ids in the Iceberg and in the Delta table."""
        folder = f"{self.folder}/store/ns/t"
        iceberg = StaticTable.from_metadata(folder).scan().to_arrow()
        delta = DeltaTable(folder).to_pyarrow_table()
        return sorted(iceberg["id"].to_pylist()), sorted(delta["id"].to_pylist())

    def definition(self) -> TableDefinition:
        return TableDefinition.of_state(self.table.manifest.load())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    made.table.append(rows(1, 2))
    return made


def test_a_table_is_published_switched_on_and_off(place: Place) -> None:
    _, told = place.run(place.url, code=1)
    assert "give --format, or run `ingester publish on`" in told
    place.run(place.url, "--format", "iceberg")
    assert place.definition().publish is None
    found, _ = place.run("on", place.url, "ns", "t", "--max-age", "2s")
    assert [(one["format"], one["version"]) for one in found] == [("iceberg", 3), ("delta", 3)]
    assert place.definition().publish == ("iceberg", "delta")
    assert place.definition().max_age_s == 2
    assert place.ids() == ([1, 2], [1, 2])
    place.table.state = place.table.manifest.load()
    place.table.append(rows(3))
    found, _ = place.run("status", place.url)
    assert [one["versions_behind"] for one in found] == [1, 1]
    place.run(place.url)
    assert place.ids() == ([1, 2, 3], [1, 2, 3])
    place.run("off", place.url, "ns", "t", "--format", "delta")
    assert place.definition().publish == ("iceberg",)
    assert list(read_pins(place.table.store, "ns", "t")) == ["iceberg"]
    found, _ = place.run("status", place.url)
    assert [(one["format"], one["switched_off"]) for one in found] == [
        ("iceberg", False),
        ("delta", True),
    ]


def test_one_format_of_a_table_that_settings_publish_is_switched_without_the_other(
    place: Place,
) -> None:
    (place.folder / "ingester.toml").write_text('[publish]\nformats = ["iceberg", "delta"]\n')
    place.run(place.url, "--config", "ingester.toml")
    assert place.definition().publish is None
    place.run("off", place.url, "ns", "t", "--format", "delta")
    assert place.definition().publish == ("iceberg",)
    place.run("on", place.url, "ns", "t", "--format", "delta")
    assert place.definition().publish == ("iceberg", "delta")


def test_formats_of_the_settings_that_are_not_published_yet_stay_on(place: Place) -> None:
    (place.folder / "ingester.toml").write_text('[publish]\nformats = ["iceberg", "delta"]\n')
    place.run("off", place.url, "ns", "t", "--format", "delta", "--config", "ingester.toml")
    assert place.definition().publish == ("iceberg",)


def test_a_table_that_its_own_setting_publishes_is_not_switched_off(place: Place) -> None:
    (place.folder / "ingester.toml").write_text('[tables."ns/t"]\npublish = ["iceberg"]\n')
    place.run(place.url, "--config", "ingester.toml")
    _, told = place.run("off", place.url, "ns", "t", "--config", "ingester.toml", code=1)
    assert 'the setting publish of [tables."ns/t"] keeps ns/t published' in told
    assert list(read_pins(place.table.store, "ns", "t")) == ["iceberg"]
    place.run("off", place.url, "ns", "t", "--format", "delta", "--config", "ingester.toml")


@pytest.mark.parametrize(
    ("name", "folder", "object"),
    [
        ("iceberg", "metadata", "v9.metadata.json"),
        ("delta", "_delta_log", f"{4:020d}.json"),
    ],
)
def test_a_foreign_version_stops_one_format_until_it_is_moved_as_advised(
    place: Place, name: str, folder: str, object: str
) -> None:
    place.run("on", place.url)
    below = place.folder / "store/ns/t" / folder
    (below / object).write_text('{"commitInfo": {"operation": "DELETE"}}\n')
    place.table.state = place.table.manifest.load()
    place.table.append(rows(3))
    found, _ = place.run(place.url, code=1)
    (refused,) = (one["refused"] for one in found if one["refused"])
    assert object in refused and f"published as {name}" in refused
    assert [one["versions_behind"] for one in found if one["format"] != name] == [0]
    assert (below / object).read_text().startswith('{"commitInfo"')
    place.run("off", place.url, "ns", "t", "--format", name)
    below.rename(place.folder / "moved")
    place.run("on", place.url, "ns", "t", "--format", name)
    assert place.ids() == ([1, 2, 3], [1, 2, 3])


def test_columns_without_a_counterpart_are_named_and_nothing_is_switched_on(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path, pa.schema([("id", pa.int64()), ("count", pa.uint32())]))
    found, _ = place.run("on", place.url, code=1)
    for one in found:
        assert "count" in one["refused"] and "uint32" in one["refused"]
    assert place.definition().publish is None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--format", "hudi"], "--format 'hudi' is not one of iceberg, delta"),
        (["--max-age", "2s"], "--max-age belongs to"),
    ],
)
def test_invalid_options_are_refused(place: Place, words: list[str], told: str) -> None:
    _, message = place.run(place.url, *words, code=2)
    assert told in message


def test_what_a_setting_of_a_daemon_publishes_is_published_without_it(place: Place) -> None:
    place.run(place.url, "--format", "delta")
    assert place.definition().publish is None
    place.table.append(rows(3))
    (one,), _ = place.run(place.url)
    assert (one["format"], one["versions_behind"]) == ("delta", 0)
