"""The floor gives the head of a table without a listing of the whole folder."""

from __future__ import annotations

import pytest

from persist.manifest import Manifest, clean_up
from persist.manifest.head import floor_folder, raise_floor, read_floor
from persist.manifest.paths import commit_path
from tests.persist.manifest.conftest import EVERY_STORE
from tests.persist.manifest.samples import fresh
from tests.persist.manifest.stores import ClockedStore
from tests.persist.manifest.yard import HALF_A_DAY, Yard


def clean(yard: Yard) -> int:
    return clean_up(fresh(yard.manifest), HALF_A_DAY).oldest


def floor(yard: Yard) -> int:
    return read_floor(yard.store, yard.manifest.folder)


def listings(yard: Yard, hint: int) -> list[str]:
    """The folders that a process lists to find the head, given the last head ``hint``."""
    store = ClockedStore(yard.store)
    seen: list[str] = []
    store.on_call = lambda call, path: seen.append(path) if call == "list" else None
    reader = Manifest(store, yard.manifest.namespace, yard.manifest.table)
    reader.note(hint)
    assert reader.head() == fresh(yard.manifest).head() >= yard.head.version
    return seen


def test_the_floor_is_raised_to_the_oldest_version_before_any_commit_is_deleted(yard: Yard) -> None:
    yard.live(30)
    assert floor(yard) == 0
    floors: list[int] = []
    yard.store.on_delete = lambda path: (
        floors.append(floor(yard)) if path.endswith(".commit") else None
    )
    oldest = clean(yard)
    assert oldest > 1
    assert set(floors) == {oldest}


def test_nothing_to_delete_raises_no_floor(yard: Yard) -> None:
    yard.live(9)
    clean(yard)
    assert floor(yard) == 0


@EVERY_STORE
def test_of_two_raised_floors_the_lower_does_no_harm(yard: Yard) -> None:
    folder = yard.manifest.folder
    for version in (20, 12, 20, 31):
        raise_floor(yard.store, folder, version)
    assert read_floor(yard.store, folder) == 31
    for version in range(32, 72):
        raise_floor(yard.store, folder, version)
    assert read_floor(yard.store, folder) == 71
    assert len(list(yard.store.list(floor_folder(folder)))) < 12
    yard.store.put(f"{floor_folder(folder)}{7:020d}", b"")  # arrived late
    yard.store.put(f"{floor_folder(folder)}README", b"left alone")
    assert read_floor(yard.store, folder) == 71


@pytest.mark.parametrize("cleaned", [False, True])
def test_a_local_folder_of_versions_is_not_listed(yard: Yard, cleaned: bool) -> None:
    yard.live(30)
    if cleaned:
        assert clean(yard) > 1
    for hint in (0, 29, 30):
        seen = listings(yard, hint)
        assert yard.manifest.folder not in seen
        assert floor_folder(yard.manifest.folder) in seen


@pytest.mark.parametrize("back", [(1, 2), (1, 2, 3, 4), (4, 5, 6)])
def test_commits_that_come_back_after_a_power_loss_are_not_the_head(
    yard: Yard, back: tuple[int, ...]
) -> None:
    """The commits are intact and consecutive, but far from the kept versions."""
    yard.live(60)
    paths = [commit_path(yard.manifest.folder, version) for version in back]
    kept = {path: yard.store.get(path) for path in paths}
    clean(yard)
    head = fresh(yard.manifest).load()
    for path, data in kept.items():
        assert yard.store.exists(path) is None
        yard.store.put(path, data)
    for hint in (0, *back, 60):
        reader = fresh(yard.manifest)
        reader.note(hint)
        assert reader.head() == head.version
    assert fresh(yard.manifest).load() == head


@pytest.mark.parametrize("hole", [range(20, 21), range(20, 24), range(17, 22)])
def test_a_gap_not_made_by_garbage_collection_hides_nothing(yard: Yard, hole: range) -> None:
    yard.live(30)
    for version in hole:
        yard.store.delete(commit_path(yard.manifest.folder, version))
    for hint in (0, hole[0] - 1, hole[-1], 30):
        reader = fresh(yard.manifest)
        reader.note(hint)
        assert reader.head() == yard.head.version
