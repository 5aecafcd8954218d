"""A broken snapshot is bypassed; a broken changelog or commit is reported by name."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from persist.manifest import (
    Action,
    Lineage,
    Manifest,
    ManifestDamaged,
    VersionNotKept,
    write_snapshot,
)
from persist.manifest.files import CommitRecord, encode_changelog, encode_commit, encode_snapshot
from persist.manifest.paths import changelog_path, commit_path, snapshot_path
from tests.persist.manifest.conftest import EVERY_STORE
from tests.persist.manifest.samples import ME, fresh, grown, history, persist, table
from tests.persist.manifest.stores import FaultyStore


def spoil(store: FaultyStore, path: str, how: str) -> None:
    """Break the object at ``path``."""
    data = bytearray(store.get(path))
    if how == "flipped":
        data[len(data) // 2] ^= 0xFF
    store.put(path, b"" if how == "empty" else bytes(data[:-3]) if how == "cut" else bytes(data))


@pytest.mark.parametrize("how", ["flipped", "cut", "empty"])
@pytest.mark.parametrize("damaged", [(9,), (9, 6), (9, 6, 3)])
def test_damaged_snapshots_are_read_around(
    manifest: Manifest, store: FaultyStore, how: str, damaged: tuple[int, ...]
) -> None:
    state = table(manifest)
    snapshots = {}
    while state.version < 10:
        state = grown(manifest, state, 1)
        if state.version % 3 == 0:
            snapshots[state.version] = snapshot_path(manifest.folder, state.version, state.uid)
            state = write_snapshot(manifest, state)
    assert [version for version, _ in state.lineage] == [9, 10]
    for version in damaged:
        spoil(store, snapshots[version], how)
    found = fresh(manifest).load()
    assert found == state
    assert sorted(found.damaged_snapshots) == sorted(snapshots[version] for version in damaged)
    assert fresh(manifest).load(9).version == 9


def test_a_snapshot_under_another_name_is_damaged(manifest: Manifest, store: FaultyStore) -> None:
    states = history(manifest, 3)
    store.put(snapshot_path(manifest.folder, 3, states[2].uid), encode_snapshot(states[1]))
    assert fresh(manifest).load() == states[2]


@EVERY_STORE
@pytest.mark.parametrize("how", ["flipped", "cut", "empty", "missing"])
def test_a_damaged_changelog_stops_unless_a_snapshot_covers_it(
    manifest: Manifest, store: FaultyStore, how: str
) -> None:
    states = history(manifest, 6)
    path = changelog_path(manifest.folder, 4, states[3].uid)
    if how == "missing":
        store.delete(path)
    else:
        spoil(store, path, how)
    with pytest.raises(ManifestDamaged) as stopped:
        fresh(manifest).load()
    assert (stopped.value.path, stopped.value.version) == (path, 4)
    assert stopped.value.uid == states[3].uid
    assert states[3].uid in str(stopped.value)
    assert fresh(manifest).load(3) == states[2]
    write_snapshot(manifest, states[4])
    assert fresh(manifest).load() == states[5]
    with pytest.raises(ManifestDamaged):
        fresh(manifest).load(4)


def plant_commit(
    manifest: Manifest, lineage: Lineage, actions: Sequence[Action], parent: str
) -> None:
    """Commit a version whose uid is not derived from its content, so its checksum cannot fail."""
    version, uid = lineage[-1]
    store, folder = manifest.store, manifest.folder
    store.put(changelog_path(folder, version, uid), encode_changelog(lineage, actions))
    commit = CommitRecord(version, uid, parent, ME, "2026-11-21T00:00:00+00:00")
    store.create(commit_path(folder, version), encode_commit(commit))


def test_a_changelog_with_another_parent_is_damage(manifest: Manifest) -> None:
    states = history(manifest, 2)
    first, second = states[1].lineage
    third, fourth = (3, "third"), (4, "fourth")
    plant_commit(manifest, (first, (2, "another"), third), persist(2), second[1])
    plant_commit(manifest, (first, second, third, fourth), persist(3), third[1])
    with pytest.raises(ManifestDamaged, match="made on top of"):
        fresh(manifest).load()


def test_a_changelog_under_the_name_of_another_is_damage(
    manifest: Manifest, store: FaultyStore
) -> None:
    """It is intact and of the right version, but its uid belongs to another changelog."""
    states = history(manifest, 4)
    path = changelog_path(manifest.folder, 3, states[2].uid)
    store.put(path, encode_changelog(states[2].lineage, persist(999)))
    with pytest.raises(ManifestDamaged, match="its uid says"):
        fresh(manifest).load()


def test_a_commit_with_another_parent_is_not_followed(
    manifest: Manifest, store: FaultyStore
) -> None:
    states = history(manifest, 2)
    lineage = (states[0].lineage[0], (2, "another"), (3, "third"))
    store.put(changelog_path(manifest.folder, 3, "third"), encode_changelog(lineage, persist(2)))
    third = CommitRecord(version=3, uid="third", parent="another", writer=ME, at="now")
    store.put(commit_path(manifest.folder, 3), encode_commit(third))
    with pytest.raises(ManifestDamaged, match="another"):
        manifest.refresh(states[1])
    with pytest.raises(VersionNotKept):
        manifest.changes(1, 3)


def test_a_commit_that_names_another_parent_than_its_changelog_is_damage(
    manifest: Manifest, store: FaultyStore
) -> None:
    states = history(manifest, 3)
    third = CommitRecord(version=3, uid=states[2].uid, parent="another", writer=ME, at="now")
    store.put(commit_path(manifest.folder, 3), encode_commit(third))
    with pytest.raises(ManifestDamaged, match="its commit says another"):
        fresh(manifest).load()


def test_an_inconsistent_changelog_is_damage(manifest: Manifest) -> None:
    states = history(manifest, 2)
    lineage = (*states[1].lineage, (3, "third"))
    plant_commit(manifest, lineage, persist(1), states[1].uid)
    with pytest.raises(ManifestDamaged, match="in the table already"):
        fresh(manifest).load()


def test_a_damaged_commit_names_its_file(manifest: Manifest, store: FaultyStore) -> None:
    table(manifest, 3)
    store.put(commit_path(manifest.folder, 3), b'{"version": 3')
    with pytest.raises(ManifestDamaged, match=r"00003\.commit"):
        fresh(manifest).load()
