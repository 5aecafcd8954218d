"""Reading a version: which files count, which are never looked at, and what damage does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from persist.manifest import (
    Manifest,
    ManifestDamaged,
    Proposal,
    TableNotFound,
    TableState,
    VersionNotKept,
    WriterIdentity,
    apply,
    commit,
    write_snapshot,
)
from persist.manifest.files import Commit, encode_changelog, encode_commit, encode_snapshot
from persist.manifest.names import changelog_path, commit_path, snapshot_path
from tests.manifest.conftest import LOCAL_ONLY
from tests.manifest.samples import ME, grown, persist, table
from tests.manifest.stores import FaultyStore


def fresh(manifest: Manifest) -> Manifest:
    """A reader of the same table that knows nothing yet."""
    return Manifest(manifest.store, manifest.namespace, manifest.table)


def paths(state: TableState) -> list[str]:
    """The live files, in order."""
    return sorted(state.files)


def expected(versions: int) -> list[str]:
    """The files of :func:`table` with so many versions."""
    return sorted(f"data/me-1-{seq}.parquet" for seq in range(1, versions))


def history(manifest: Manifest, versions: int) -> list[TableState]:
    """The states of all versions of a new table; state V at index V - 1."""
    states = [table(manifest)]
    while len(states) < versions:
        states.append(grown(manifest, states[-1], 1))
    return states


def spoil(store: FaultyStore, path: str, how: str) -> None:
    """Break the object at ``path``."""
    data = bytearray(store.get(path))
    if how == "flipped":
        data[len(data) // 2] ^= 0xFF
    store.put(path, b"" if how == "empty" else bytes(data[:-3]) if how == "cut" else bytes(data))


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


def grown_in_memory(state: TableState) -> TableState:
    """A state that nobody committed."""
    return apply(state, persist(777))


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


def test_a_changelog_made_on_top_of_another_is_damage(
    manifest: Manifest, store: FaultyStore
) -> None:
    states = history(manifest, 4)
    lineage = (states[0].lineage[0], (2, "another"), (3, states[2].uid))
    store.put(
        changelog_path(manifest.folder, 3, states[2].uid), encode_changelog(lineage, persist(2))
    )
    with pytest.raises(ManifestDamaged, match="made on top of"):
        fresh(manifest).load()


def test_a_commit_made_on_top_of_another_is_not_followed(
    manifest: Manifest, store: FaultyStore
) -> None:
    states = history(manifest, 2)
    lineage = (states[0].lineage[0], (2, "another"), (3, "third"))
    store.put(changelog_path(manifest.folder, 3, "third"), encode_changelog(lineage, persist(2)))
    third = Commit(version=3, uid="third", parent="another", writer=ME, at="now")
    store.put(commit_path(manifest.folder, 3), encode_commit(third))
    with pytest.raises(ManifestDamaged, match="another"):
        manifest.refresh(states[1])
    with pytest.raises(VersionNotKept):
        manifest.changes(1, 3)


def test_a_commit_that_names_another_parent_than_its_changelog_is_damage(
    manifest: Manifest, store: FaultyStore
) -> None:
    states = history(manifest, 3)
    third = Commit(version=3, uid=states[2].uid, parent="another", writer=ME, at="now")
    store.put(commit_path(manifest.folder, 3), encode_commit(third))
    with pytest.raises(ManifestDamaged, match="its commit says another"):
        fresh(manifest).load()


def test_nonsense_in_a_changelog_is_damage(manifest: Manifest, store: FaultyStore) -> None:
    states = history(manifest, 3)
    path = changelog_path(manifest.folder, 3, states[2].uid)
    store.put(path, encode_changelog(states[2].lineage, persist(1)))
    with pytest.raises(ManifestDamaged, match="in the table already"):
        fresh(manifest).load()


def test_a_damaged_commit_names_its_file(manifest: Manifest, store: FaultyStore) -> None:
    table(manifest, 3)
    store.put(commit_path(manifest.folder, 3), b'{"version": 3')
    with pytest.raises(ManifestDamaged, match=r"00003\.commit"):
        fresh(manifest).load()


def test_a_version_that_is_not_there_is_answered_with_those_that_are(
    manifest: Manifest, store: FaultyStore
) -> None:
    table(manifest, 6)
    for version in (1, 2, 3):
        store.delete(commit_path(manifest.folder, version))
    for absent in (0, 2, 7, -1):
        with pytest.raises(VersionNotKept) as refused:
            fresh(manifest).load(absent)
        assert (refused.value.oldest, refused.value.newest) == (4, 6)


def test_a_commit_below_a_gap_does_not_count(manifest: Manifest, store: FaultyStore) -> None:
    """A writer that slept through the clean-up of its parent made it."""
    states = history(manifest, 8)
    for version in range(1, 6):
        store.delete(commit_path(manifest.folder, version))
    stray = Commit(version=3, uid="stray", parent=states[1].uid, writer=ME, at="now")
    store.create(commit_path(manifest.folder, 3), encode_commit(stray))
    assert fresh(manifest).load() == states[7]
    with pytest.raises(VersionNotKept, match=r"6\.\.8"):
        fresh(manifest).load(3)
    assert manifest.refresh(states[1]) == states[7]


@LOCAL_ONLY
@pytest.mark.parametrize("behind", [0, 1, 5, 31, 32, 40])
def test_a_reader_that_holds_a_state_gets_the_newest(manifest: Manifest, behind: int) -> None:
    known = table(manifest, 2)
    newest = grown(manifest, known, behind)
    assert fresh(manifest).refresh(known) == newest
    assert fresh(manifest).load(known=known) == newest
    assert fresh(manifest).load(newest.version, known=known) == newest


def test_refreshing_without_news_returns_the_same_object_in_two_reads(
    manifest: Manifest, store: FaultyStore
) -> None:
    known = table(manifest, 20)
    store.calls.clear()
    assert manifest.refresh(known) is known
    assert dict(store.calls) == {"get": 2}


def test_refreshing_reads_only_what_follows(manifest: Manifest, store: FaultyStore) -> None:
    known = table(manifest, 20)
    newest = grown(manifest, known, 2)
    store.calls.clear()
    assert manifest.refresh(known) == newest
    assert dict(store.calls) == {"get": 6}


def test_a_state_that_never_was_committed_is_replaced_whole(manifest: Manifest) -> None:
    states = history(manifest, 3)
    losing = replace(grown_in_memory(states[1]), uid="lost")
    assert manifest.refresh(losing) == states[2]
    assert manifest.load(2, known=losing) == states[1]


def test_a_reader_left_behind_by_clean_up_finds_the_head(
    manifest: Manifest, store: FaultyStore
) -> None:
    states = history(manifest, 9)
    write_snapshot(manifest, states[6])
    for version in range(1, 6):
        store.delete(commit_path(manifest.folder, version))
    assert manifest.refresh(states[1]) == states[8]
    assert manifest.refresh(states[0]) == states[8]


def test_a_snapshot_made_meanwhile_is_known_to_those_who_follow(manifest: Manifest) -> None:
    known = table(manifest, 3)
    state = write_snapshot(manifest, grown(manifest, known, 2))
    state = grown(manifest, state, 1)
    followed = manifest.refresh(known)
    assert followed == state
    assert followed.lineage == state.lineage
    assert followed.changelog_bytes == state.changelog_bytes > 0


def test_changes_are_what_each_version_did(manifest: Manifest) -> None:
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


def test_changes_of_versions_that_are_gone_are_refused(
    manifest: Manifest, store: FaultyStore
) -> None:
    table(manifest, 6)
    for version in (1, 2, 3):
        store.delete(commit_path(manifest.folder, version))
    assert len(manifest.changes(3, 6)) == 3
    with pytest.raises(VersionNotKept, match=r"4\.\.6"):
        manifest.changes(2, 6)


@LOCAL_ONLY
@pytest.mark.parametrize("hint", [0, 1, 60, 100])
def test_the_head_is_found_in_few_requests(
    manifest: Manifest, store: FaultyStore, hint: int
) -> None:
    for version in range(1, 101):
        store.create(commit_path(manifest.folder, version), b"{}")
    reader = fresh(manifest)
    reader.note(hint)
    assert reader.folder
    store.calls.clear()
    assert reader.head() == 100
    assert sum(store.calls.values()) <= 20
    store.calls.clear()
    assert reader.head() == 100
    assert sum(store.calls.values()) <= 3


def test_a_hint_that_clean_up_has_passed_does_no_harm(
    manifest: Manifest, store: FaultyStore
) -> None:
    for version in (7, 8, 9):
        store.create(commit_path(manifest.folder, version), b"{}")
    for hint in (3, 12):
        reader = fresh(manifest)
        reader.note(hint)
        assert reader.head() == 9


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


@LOCAL_ONLY
@pytest.mark.parametrize("name", ["", "_x", "a/b", "..", "a b", "x" * 129])
def test_names_that_could_leave_their_folder_are_refused(store: FaultyStore, name: str) -> None:
    with pytest.raises(ValueError, match="does not match"):
        Manifest(store, name, "t")
    with pytest.raises(ValueError, match="does not match"):
        Manifest(store, "ns", name)


def test_readers_and_a_writer_agree_on_counters(manifest: Manifest) -> None:
    other = WriterIdentity("other", "run", 3)
    state = grown(manifest, table(manifest, 3), 2, writer=other)
    state = commit(manifest, state, Proposal(persist(9)), ME)
    found = fresh(manifest).load()
    assert (found.rows, found.bytes, found.file_count) == (50, 5000, 5)
    assert (state.rows, state.bytes, state.file_count) == (50, 5000, 5)
    assert found.changelog_bytes == state.changelog_bytes
