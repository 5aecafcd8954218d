"""What a publisher gives to the formats: each version once, over switches, rollbacks and gaps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

from persist.manifest import Manifest, Retention, clean_up, read_pins
from persist.publish.format import FORMATS
from persist.publish.publisher import FormatStatus, Publisher
from persist.store import open_store
from persist.switching import roll_back
from tests.persist.publish.tables import KINDS, BuiltTable

SCHEMA = pa.schema([("n", pa.int64())])
RETAIN_S = 86_400.0


def rows(*ids: int) -> pa.Table:
    return pa.table({"n": ids}, SCHEMA)


class Place:
    """A table on local files, and a publisher that lives as long as the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = f"{folder}/ns/t"
        self.table = BuiltTable(open_store(f"file://{folder}"), SCHEMA)
        self.publisher = Publisher(self.table.store, "ns", "t")

    def publish(self, publisher: Publisher | None = None) -> list[FormatStatus]:
        found = (publisher or self.publisher).publish(FORMATS, retain_s=RETAIN_S)
        assert [(one.refused, one.error) for one in found] == [(None, None)] * 2
        return found

    def numbers(self) -> set[int]:
        return {one.head.place.number for one in self.publish() if one.head is not None}

    def back(self) -> None:
        """Roll the table back."""
        done = roll_back(self.table.store, "ns", "t", carry=False)
        self.table.manifest = Manifest(self.table.store, "ns", "t", done.table_version)
        self.table.state = self.table.manifest.load()

    def ids(self, version: int | None = None) -> tuple[list[int], list[int]]:
        """What Iceberg and Delta read."""
        iceberg = StaticTable.from_metadata(self.folder).scan(snapshot_id=version).to_arrow()
        delta = DeltaTable(self.folder, version=version).to_pyarrow_table()
        return ids(iceberg), ids(delta)


def ids(found: Any) -> list[int]:
    return sorted(found.column("n").to_pylist())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("fresh", [False, True], ids=["running", "restarted"])
def test_switches_and_rollbacks_are_versions_like_others(place: Place, fresh: bool) -> None:
    def publish() -> int:
        found = place.publish(Publisher(place.table.store, "ns", "t") if fresh else None)
        (number,) = {one.head.place.number for one in found if one.head is not None}
        return number

    table, expected = place.table, {}
    table.append(rows(1))
    expected[publish()] = [1]
    table.append(rows(2))
    table.switch(rows(10))
    expected[publish()] = [10]
    table.append(rows(11))
    expected[publish()] = [10, 11]
    place.back()
    expected[publish()] = [1, 2]
    table.append(rows(3))
    expected[publish()] = [1, 2, 3]
    for number, wanted in expected.items():
        assert place.ids(number) == (wanted, wanted)
    log = list(Path(place.folder, "_delta_log").glob("*.json"))
    assert sorted(int(path.stem) for path in log) == list(range(2, max(expected) + 1))


def test_versions_that_are_gone_leave_a_gap_and_no_wrong_answer(place: Place) -> None:
    table = place.table
    table.append(rows(0))
    (first,) = place.numbers()
    for n in range(1, 30):
        table.append(rows(n))
    # As if publishing had been switched off: without a pin nothing keeps the versions.
    for name in FORMATS:
        place.publisher.switch_off(name)
    clean_up(table.manifest, Retention(retain_s=0, orphan_grace_s=0))
    (last,) = place.numbers()
    assert last == table.state.version
    assert place.ids() == (list(range(30)),) * 2
    with pytest.raises(Exception, match="LogSegment"):
        DeltaTable(place.folder, version=first + 3)


def test_a_pin_keeps_what_a_publisher_that_is_behind_has_published(place: Place) -> None:
    table = place.table
    table.append(rows(0))
    place.publish()
    table.compact()
    for n in range(1, 30):
        table.append(rows(n))
    clean_up(table.manifest, Retention(retain_s=0, orphan_grace_s=0))
    assert place.ids() == ([0], [0])
    assert {pin.version for pin in read_pins(table.store, "ns", "t").values()} == {2}
    place.publish()
    assert place.ids() == (list(range(30)),) * 2
    assert place.ids(2) == ([0], [0])


def test_metadata_of_others_in_one_format_does_not_hinder_clean_up_of_the_other(
    place: Place,
) -> None:
    place.publish()
    for n in range(25):
        place.table.append(rows(n))
    place.publish()
    store = place.table.store
    store.create("ns/t/metadata/0-theirs.metadata.json", b"{}")
    log = len(list(store.list("ns/t/_delta_log/")))
    assert Publisher(store, "ns", "t").clean_up(FORMATS, retain_s=0, grace_s=0) > 0
    assert len(list(store.list("ns/t/_delta_log/"))) < log


def test_a_version_that_is_published_already_is_pinned_again(place: Place) -> None:
    """Switched off and on without a commit, or off by another daemon that was slow."""
    place.table.append(rows(1))
    place.publish()
    before = read_pins(place.table.store, "ns", "t")
    for fresh in (False, True):
        for name in FORMATS:
            place.publisher.switch_off(name)
        place.publish(Publisher(place.table.store, "ns", "t") if fresh else None)
        assert read_pins(place.table.store, "ns", "t") == before


def test_the_lag_is_counted_in_versions_and_seconds(place: Place) -> None:
    place.table.append(rows(0))
    (one, _) = place.publisher.status(FORMATS)
    assert (one.head, one.versions_behind) == (None, 2)
    place.publish()
    assert [s.versions_behind for s in place.publisher.status(FORMATS)] == [0, 0]
    for n in range(3):
        place.table.append(rows(n))
    for status in place.publisher.status(FORMATS):
        assert status.versions_behind == 3
        assert 0 <= status.seconds_behind < 60


def test_a_table_of_another_history_is_not_continued(place: Place) -> None:
    place.table.append(rows(0))
    place.publish()
    for info in list(place.table.store.list("ns/t/v1/")):
        place.table.store.delete(info.path)
    again = BuiltTable(place.table.store, SCHEMA)
    again.append(rows(7))
    again.append(rows(8))
    for status in Publisher(again.store, "ns", "t").publish(FORMATS, retain_s=RETAIN_S):
        assert status.refused is not None and "another table of this name" in status.refused


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_table_has_the_same_rows_in_both_formats(tmp_path: Path, kind: str) -> None:
    table = KINDS[kind](open_store(f"file://{tmp_path}"))
    publisher = Publisher(table.store, "ns", "t")
    found = publisher.publish(FORMATS, retain_s=RETAIN_S)
    assert [(one.refused, one.error, one.versions_behind) for one in found] == [(None, None, 0)] * 2
    folder, expected = f"{tmp_path}/ns/t", ids(table.rows())
    assert ids(StaticTable.from_metadata(folder).scan().to_arrow()) == expected
    assert ids(DeltaTable(folder).to_pyarrow_table()) == expected
