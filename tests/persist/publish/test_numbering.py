"""Numbers of published versions, over any switches of the table version."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persist.manifest import Manifest, ManifestDamaged, TableState
from persist.publish.numbering import GAP, Numbering
from persist.store import ObjectStore, open_store
from persist.switching import roll_back, rollback_target
from tests.drivers.memory_store import MemoryStore
from tests.persist.publish.tables import BuiltTable

SCHEMA = pa.schema([("id", pa.int64())])


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids)}, SCHEMA)


def number(store: ObjectStore, state: TableState, highest: int = 0) -> int:
    """The number as a publisher that has just started finds it."""
    return Numbering(store, "ns", "t").place(state, lambda: highest).number


def history(table: BuiltTable) -> list[TableState]:
    """All states of the current period of the table."""
    state = table.state
    first = max((each.into for each in state.imports.values()), default=1)
    return [table.manifest.load(version) for version in range(first, state.version + 1)]


def test_a_table_that_was_never_switched_has_the_manifests_versions(tmp_path: Path) -> None:
    table = BuiltTable(open_store(f"file://{tmp_path}"), SCHEMA)
    table.append(rows(1))
    assert number(table.store, table.state) == table.state.version
    assert not list(table.store.list("ns/t/_published/"))


@given(st.lists(st.sampled_from(["append", "switch", "back", "look"]), max_size=12))
@settings(deadline=None, max_examples=60)
def test_numbers_rise_by_one_over_switches_and_rollbacks(moves: list[str]) -> None:
    table = BuiltTable(MemoryStore(), SCHEMA)
    table.append(rows(1))
    seen: dict[tuple[int, int], int] = {}

    def look() -> None:
        for state in history(table):
            at = (state.table_version, state.version)
            found = number(table.store, state)
            assert seen.setdefault(at, found) == found

    def sealed() -> int:
        look()
        # The seal is the version after the newest one seen.
        return number(table.store, table.state) + 1

    for place, move in enumerate(moves):
        if move == "append":
            table.append(rows(place))
        elif move == "look":
            look()
        elif move == "switch":
            before = sealed()
            table.switch(rows(place))
            assert number(table.store, history(table)[0]) == before + 1
        elif rollback_target(table.store, "ns", "t") is not None:
            before = sealed()
            done = roll_back(table.store, "ns", "t", carry=False)
            table.manifest = Manifest(table.store, "ns", "t", done.table_version)
            table.state = table.manifest.load()
            assert number(table.store, history(table)[0]) == before + 1


def test_numbers_are_found_again_when_several_switches_were_missed(tmp_path: Path) -> None:
    table = BuiltTable(open_store(f"file://{tmp_path}"), SCHEMA)
    table.append(rows(1))
    for push in range(3):
        table.switch(rows(push))
        table.append(rows(push))
    found = number(table.store, table.state)
    # 1, 2 and the seal; 3 versions from each import on: import, append, seal.
    assert found == 3 + 3 + 3 + 2


def test_a_lost_history_leaves_a_gap_above_everything_published(tmp_path: Path) -> None:
    table = BuiltTable(open_store(f"file://{tmp_path}"), SCHEMA)
    table.append(rows(1))
    table.switch(rows(2))
    for info in list(table.store.list("ns/t/v1/")):
        table.store.delete(info.path)
    first = number(table.store, history(table)[0], highest=7)
    assert first == 7 + GAP + 1
    # Once recorded it stays, whatever is published meanwhile.
    assert number(table.store, history(table)[0], highest=9 * GAP) == first


def test_a_table_that_was_never_published_needs_no_gap(tmp_path: Path) -> None:
    table = BuiltTable(open_store(f"file://{tmp_path}"), SCHEMA)
    table.switch(rows(2))
    for info in list(table.store.list("ns/t/v1/")):
        table.store.delete(info.path)
    assert number(table.store, table.state) == table.state.version


def test_a_damaged_record_is_named_and_not_replaced(tmp_path: Path) -> None:
    table = BuiltTable(open_store(f"file://{tmp_path}"), SCHEMA)
    table.switch(rows(2))
    number(table.store, table.state)
    (record,) = table.store.list("ns/t/_published/")
    assert msgspec.json.decode(table.store.get(record.path))["switch"] == 1
    table.store.put(record.path, b"{}")
    with pytest.raises(ManifestDamaged, match=record.path):
        number(table.store, table.state)
