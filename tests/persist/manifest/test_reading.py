"""Reading a version: which files count, which are never read, and which versions exist."""

from __future__ import annotations

from dataclasses import replace

import pytest

from persist.manifest import (
    Manifest,
    ManifestDamaged,
    TableNotFound,
    TableState,
    VersionNotKept,
    write_snapshot,
)
from persist.manifest.files import CommitRecord, encode_changelog, encode_commit, encode_snapshot
from persist.manifest.paths import changelog_path, commit_path, snapshot_path
from tests.persist.manifest.conftest import EVERY_STORE
from tests.persist.manifest.samples import (
    ME,
    fresh,
    grown,
    grown_in_memory,
    history,
    persist,
    table,
)
from tests.persist.manifest.stores import FaultyStore


def paths(state: TableState) -> list[str]:
    """The live files, in order."""
    return sorted(state.files)


def expected(versions: int) -> list[str]:
    """The files of :func:`table` with that many versions."""
    return sorted(f"data/me-1-{seq}.parquet" for seq in range(1, versions))


def plant(manifest: Manifest, state: TableState, uid: str) -> None:
    """Leave changelog and snapshot of a writer that lost this version."""
    lineage = (*state.lineage[:-1], (state.version, uid))
    stray = persist(999)
    manifest.store.put(
        changelog_path(manifest.folder, state.version, uid), encode_changelog(lineage, stray)
    )


def test_a_table_without_a_version_is_not_found(manifest: Manifest) -> None:
    with pytest.raises(TableNotFound, match="ns/flights"):
        manifest.load()
    with pytest.raises(TableNotFound):
        manifest.load(1)


def test_the_very_first_version_is_read(manifest: Manifest) -> None:
    state = table(manifest)
    assert fresh(manifest).load() == fresh(manifest).load(1) == state
    assert (state.version, state.file_count) == (1, 0)
    assert state.properties["timestamp_unit"] == "us"


@EVERY_STORE
def test_every_version_is_read_from_changelogs_alone(manifest: Manifest) -> None:
    states = history(manifest, 6)
    for state in states:
        assert fresh(manifest).load(state.version) == state
        assert paths(state) == expected(state.version)


@pytest.mark.parametrize("snapshots", [(6,), (3,), (1,), (2, 4), (4, 6)])
def test_every_version_is_read_with_snapshots_too(
    manifest: Manifest, snapshots: tuple[int, ...]
) -> None:
    states = history(manifest, 6)
    for version in snapshots:
        write_snapshot(manifest, states[version - 1])
    for state in states:
        assert fresh(manifest).load(state.version) == state


def test_lineages_begin_at_the_last_snapshot_and_reading_needs_nothing_older(
    manifest: Manifest, store: FaultyStore
) -> None:
    state = table(manifest, 4)
    state = grown(manifest, write_snapshot(manifest, state), 3)
    assert [version for version, _ in state.lineage] == [4, 5, 6, 7]
    for old in fresh(manifest).load(3).lineage:
        store.delete(changelog_path(manifest.folder, *old))
    assert fresh(manifest).load() == state


def test_a_snapshot_alone_is_enough(manifest: Manifest, store: FaultyStore) -> None:
    state = table(manifest, 3)
    write_snapshot(manifest, state)
    for place in state.lineage:
        store.delete(changelog_path(manifest.folder, *place))
    assert fresh(manifest).load() == state


def test_files_of_other_uids_are_never_read(manifest: Manifest) -> None:
    states = history(manifest, 5)
    write_snapshot(manifest, states[1])
    for state in states:
        for uid in ("00000000", "ffffffff"):
            plant(manifest, state, uid)
        lie = replace(grown_in_memory(state), uid="ffffffff")
        manifest.store.put(
            snapshot_path(manifest.folder, state.version, "ffffffff"), encode_snapshot(lie)
        )
    for state in states:
        assert fresh(manifest).load(state.version) == state


@EVERY_STORE
def test_the_error_for_a_missing_version_names_the_existing_ones(
    manifest: Manifest, store: FaultyStore
) -> None:
    table(manifest, 6)
    for version in (1, 2, 3):
        store.delete(commit_path(manifest.folder, version))
    for absent in (0, 2, 7, -1):
        with pytest.raises(VersionNotKept) as refused:
            fresh(manifest).load(absent)
        assert (refused.value.oldest, refused.value.newest) == (4, 6)


@EVERY_STORE
def test_a_commit_below_a_gap_does_not_count(manifest: Manifest, store: FaultyStore) -> None:
    """It was made by a writer that was paused during the deletion of its parent."""
    states = history(manifest, 8)
    for version in range(1, 6):
        store.delete(commit_path(manifest.folder, version))
    stray = CommitRecord(version=3, uid="stray", parent=states[1].uid, writer=ME, at="now")
    store.create(commit_path(manifest.folder, 3), encode_commit(stray))
    assert fresh(manifest).load() == states[7]
    with pytest.raises(VersionNotKept, match=r"6\.\.8"):
        fresh(manifest).load(3)
    assert manifest.refresh(states[1]) == states[7]


def test_changes_are_the_actions_of_each_version(manifest: Manifest) -> None:
    states = history(manifest, 5)
    changes = manifest.changes(2, 4)
    assert [change.version for change in changes] == [3, 4]
    assert [change.uid for change in changes] == [states[2].uid, states[3].uid]
    assert [change.actions for change in changes] == [persist(2), persist(3)]
    assert changes[0].writer == ME
    assert changes[0].at
    assert len(manifest.changes(0, 5)) == 5
    assert manifest.changes(4, 4) == []
    with pytest.raises(VersionNotKept):
        manifest.changes(3, 6)


def test_changes_of_deleted_versions_are_refused(manifest: Manifest, store: FaultyStore) -> None:
    table(manifest, 6)
    for version in (1, 2, 3):
        store.delete(commit_path(manifest.folder, version))
    assert len(manifest.changes(3, 6)) == 3
    with pytest.raises(VersionNotKept, match=r"4\.\.6"):
        manifest.changes(2, 6)


def test_another_table_version_is_another_table(manifest: Manifest, store: FaultyStore) -> None:
    table(manifest, 3)
    store.put("ns/flights/_current/00000000000000000001", b'{"table_version": 2}')
    second = fresh(manifest)
    assert second.object_path("data/f") == "ns/flights/v2/data/f"
    assert manifest.object_path("data/f") == "ns/flights/v1/data/f"
    with pytest.raises(TableNotFound):
        second.load()
    store.put("ns/flights/_current/00000000000000000002", b"{}")
    with pytest.raises(ManifestDamaged, match="_current"):
        fresh(manifest).load()


@pytest.mark.parametrize("name", ["", "_x", "a/b", "..", "a b", "x" * 129])
def test_names_that_could_leave_their_folder_are_refused(store: FaultyStore, name: str) -> None:
    with pytest.raises(ValueError, match="does not match"):
        Manifest(store, name, "t")
    with pytest.raises(ValueError, match="does not match"):
        Manifest(store, "ns", name)
