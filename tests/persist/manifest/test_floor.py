"""The floor gives the head of a table without a listing of the whole folder."""

from __future__ import annotations

import pytest

from persist.manifest import Manifest, clean_up
from persist.manifest.lineage import floor_folder, raise_floor, read_floor
from persist.manifest.paths import commit_path
from tests.persist.manifest.aged_table import HALF_A_DAY, AgedTable
from tests.persist.manifest.conftest import EVERY_STORE
from tests.persist.manifest.samples import fresh
from tests.persist.manifest.stores import ClockedStore


def clean(aged: AgedTable) -> int:
    return clean_up(fresh(aged.manifest), HALF_A_DAY).oldest


def floor(aged: AgedTable) -> int:
    return read_floor(aged.store, aged.manifest.folder)


def listings(aged: AgedTable, hint: int) -> list[str]:
    """The folders that a process lists to find the head, given the last head ``hint``."""
    store = ClockedStore(aged.store)
    seen: list[str] = []
    store.on_call = lambda call, path: seen.append(path) if call == "list" else None
    reader = Manifest(store, aged.manifest.namespace, aged.manifest.table)
    reader.note(hint)
    assert reader.head() == fresh(aged.manifest).head() >= aged.head.version
    return seen


def test_the_floor_is_raised_to_the_oldest_version_before_any_commit_is_deleted(
    aged: AgedTable,
) -> None:
    aged.live(30)
    assert floor(aged) == 0
    floors: list[int] = []
    aged.store.on_delete = lambda path: (
        floors.append(floor(aged)) if path.endswith(".commit") else None
    )
    oldest = clean(aged)
    assert oldest > 1
    assert set(floors) == {oldest}


def test_nothing_to_delete_raises_no_floor(aged: AgedTable) -> None:
    aged.live(9)
    clean(aged)
    assert floor(aged) == 0


@EVERY_STORE
def test_the_lower_of_two_floors_does_no_harm(aged: AgedTable) -> None:
    folder = aged.manifest.folder
    for version in (20, 12, 20, 31):
        raise_floor(aged.store, folder, version)
    assert read_floor(aged.store, folder) == 31
    for version in range(32, 72):
        raise_floor(aged.store, folder, version)
    assert read_floor(aged.store, folder) == 71
    assert len(list(aged.store.list(floor_folder(folder)))) < 12
    aged.store.put(f"{floor_folder(folder)}{7:020d}", b"")  # arrived late
    aged.store.put(f"{floor_folder(folder)}README", b"left alone")
    assert read_floor(aged.store, folder) == 71


@pytest.mark.parametrize("cleaned", [False, True])
def test_a_local_folder_of_versions_is_not_listed(aged: AgedTable, cleaned: bool) -> None:
    aged.live(30)
    if cleaned:
        assert clean(aged) > 1
    for hint in (0, 29, 30):
        seen = listings(aged, hint)
        assert aged.manifest.folder not in seen
        assert floor_folder(aged.manifest.folder) in seen


@pytest.mark.parametrize("back", [(1, 2), (1, 2, 3, 4), (4, 5, 6)])
def test_commits_that_reappear_after_a_power_loss_are_not_the_head(
    aged: AgedTable, back: tuple[int, ...]
) -> None:
    """The commits are intact and consecutive, but far from the kept versions."""
    aged.live(60)
    paths = [commit_path(aged.manifest.folder, version) for version in back]
    kept = {path: aged.store.get(path) for path in paths}
    clean(aged)
    head = fresh(aged.manifest).load()
    for path, data in kept.items():
        assert aged.store.exists(path) is None
        aged.store.put(path, data)
    for hint in (0, *back, 60):
        reader = fresh(aged.manifest)
        reader.note(hint)
        assert reader.head() == head.version
    assert fresh(aged.manifest).load() == head


@pytest.mark.parametrize("hole", [range(20, 21), range(20, 24), range(17, 22)])
def test_a_gap_not_made_by_garbage_collection_hides_nothing(aged: AgedTable, hole: range) -> None:
    aged.live(30)
    for version in hole:
        aged.store.delete(commit_path(aged.manifest.folder, version))
    for hint in (0, hole[0] - 1, hole[-1], 30):
        reader = fresh(aged.manifest)
        reader.note(hint)
        assert reader.head() == aged.head.version
