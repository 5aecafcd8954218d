"""Garbage collection: what is deleted, what is kept, and that kept versions read as before."""

from __future__ import annotations

import pytest

from persist.manifest import (
    CleanUp,
    Retention,
    TableNotFound,
    VersionNotKept,
    WriterIdentity,
    clean_up,
    janitor,
)
from persist.manifest.paths import changelog_path, snapshot_path
from tests.persist.manifest.aged_table import HALF_A_DAY, AgedTable, upload
from tests.persist.manifest.conftest import EVERY_STORE
from tests.persist.manifest.samples import fresh


def clean(aged: AgedTable, retention: Retention = HALF_A_DAY) -> CleanUp:
    return clean_up(fresh(aged.manifest), retention)


def test_recent_versions_and_the_last_ten_are_kept(aged: AgedTable) -> None:
    aged.live(30)
    assert clean(aged).oldest == 16
    aged.check_kept(16)
    assert clean(aged, Retention(retain_s=0, orphan_grace_s=3600)).oldest >= 21
    aged.check_kept(fresh(aged.manifest).head() - 9)


def test_a_short_history_is_kept_whole(aged: AgedTable) -> None:
    aged.live(9)
    aged.store.advance(days=30)
    done = clean(aged)
    assert (done.oldest_before, done.oldest, done.files) == (1, 1, 0)
    assert done.horizon is None
    aged.check_kept(1)


def test_a_table_that_does_not_exist_is_not_cleaned(aged: AgedTable) -> None:
    with pytest.raises(TableNotFound):
        clean(aged)


@EVERY_STORE
def test_stray_uids_at_every_version_are_deleted_and_ignored(aged: AgedTable) -> None:
    """Later versions are not read from a stray snapshot of a kept version."""
    aged.live(30, snapshots=(12, 24))
    aged.plant_strays()
    aged.store.advance(hours=2)
    done = clean(aged)
    assert done.oldest == 18
    aged.check_kept(18)
    left = aged.names(".changelog") + aged.names(".snapshot") + aged.names(".parquet")
    assert not [name for name in left if "00000000." in name or "ffffffff." in name]
    assert not [name for name in left if "stray" in name]


def test_strays_within_the_grace_stay(aged: AgedTable) -> None:
    aged.live(20)
    aged.plant_strays(("ffffffff",))
    clean(aged)
    assert len([name for name in aged.names(".parquet") if "stray" in name]) == 20
    kept = [name for name in aged.names(".snapshot") if "ffffffff" in name]
    assert len(kept) == 20
    aged.check_kept(6)


def test_an_attempt_above_the_head_is_never_garbage(aged: AgedTable) -> None:
    """Its writer may be paused, and win the version when it continues."""
    aged.live(12)
    path = changelog_path(aged.manifest.folder, 13, "asleep")
    aged.store.put(path, b"whatever")
    aged.store.advance(days=30)
    clean(aged)
    assert path in aged.names(".changelog")


def test_changelogs_needed_by_the_oldest_kept_version_stay(aged: AgedTable) -> None:
    aged.live(30, snapshots=(12, 24))
    clean(aged)
    assert len(aged.names(".snapshot")) == 2
    assert aged.versions_of(".changelog") == list(range(12, 32))
    aged.check_kept(16)


def test_a_snapshot_is_written_instead_of_keeping_many_old_changelogs(aged: AgedTable) -> None:
    aged.live(45)
    done = clean(aged)
    assert (done.oldest, done.snapshot_version) == (31, 31)
    assert aged.versions_of(".changelog") == list(range(31, 47))
    aged.check_kept(31)


@pytest.mark.parametrize("damage", [b"", b"INGSNAP1 and nothing else"])
def test_a_damaged_snapshot_is_replaced_before_older_objects_are_deleted(
    aged: AgedTable, damage: bytes
) -> None:
    aged.live(30, snapshots=(12, 15))
    at = aged.states[14]
    aged.store.put(snapshot_path(aged.manifest.folder, at.version, at.uid), damage)
    done = clean(aged)
    assert (done.oldest, done.snapshot_version) == (16, 16)
    aged.check_kept(16)


def test_files_of_an_old_kept_version_stay_until_it_is_deleted(aged: AgedTable) -> None:
    aged.live(30)
    before = set(aged.names(".parquet"))
    clean(aged)
    gone = before - set(aged.names(".parquet"))
    listed = {aged.manifest.object_path(p) for state in aged.states[15:] for p in state.files}
    ever = {aged.manifest.object_path(p) for state in aged.states for p in state.files}
    assert gone == ever - listed
    assert gone


def test_a_horizon_is_committed_before_the_first_data_file_is_deleted(aged: AgedTable) -> None:
    aged.live(12)
    upload(aged.manifest, "orphan", 999)
    aged.store.advance(hours=3)
    horizons: list[str | None] = []

    def note(path: str) -> None:
        if path.endswith(".parquet"):
            horizons.append(fresh(aged.manifest).load().horizon)

    aged.store.on_delete = note
    done = clean(aged)
    assert (done.data.files, done.data.bytes) == (1, len("orphan"))
    assert horizons == [done.horizon]
    assert done.newest == 13


@EVERY_STORE
def test_a_second_run_does_nothing_and_makes_no_version(aged: AgedTable) -> None:
    aged.live(30, snapshots=(20,))
    aged.plant_strays()
    aged.store.advance(hours=2)
    first = clean(aged)
    assert first.files > 100
    names = aged.names("")
    second = clean(aged)
    assert (second.files, second.horizon, second.newest) == (0, None, first.newest)
    assert aged.names("") == names


def test_a_dry_run_reports_what_a_run_would_do_and_changes_nothing(aged: AgedTable) -> None:
    aged.live(45)
    aged.plant_strays(("ffffffff",))
    aged.store.advance(hours=2)
    names = aged.names("")
    aged.store.calls.clear()
    planned = clean_up(aged.manifest, HALF_A_DAY, dry_run=True)
    assert aged.names("") == names
    assert not {"put", "create", "delete"} & set(aged.store.calls)
    done = clean(aged)
    assert planned.dry_run
    assert not done.dry_run
    for kind in ("oldest", "snapshot_version", "commits", "changelogs", "snapshots", "data"):
        assert getattr(planned, kind) == getattr(done, kind), kind
    assert done.newest == planned.newest + 1


def test_commits_are_deleted_in_ascending_order(aged: AgedTable) -> None:
    aged.live(30)
    clean(aged)
    commits = [path for path in aged.store.deleted if path.endswith(".commit")]
    assert commits == sorted(commits)
    assert len(commits) == 15
    assert aged.store.deleted[:15] == commits


def test_foreign_files_are_left_alone(aged: AgedTable) -> None:
    aged.live(30)
    foreign = [f"{aged.manifest.root}/data/notes.txt", f"{aged.manifest.folder}readme.commit"]
    for path in foreign:
        aged.store.put(path, b"mine")
    aged.store.advance(days=3)
    clean(aged)
    for path in foreign:
        assert aged.store.get(path) == b"mine"


def test_garbage_collection_neither_fences_nor_is_fenced(aged: AgedTable) -> None:
    aged.live(12)
    upload(aged.manifest, "orphan", 999)
    aged.store.advance(hours=3)
    clean(aged)
    aged.states.append(fresh(aged.manifest).load())
    assert aged.head.writers == aged.states[-2].writers
    assert janitor() != janitor()
    aged.persist()
    aged.check_kept(1)


def test_a_given_identity_commits_the_horizon(aged: AgedTable) -> None:
    aged.live(12)
    upload(aged.manifest, "orphan", 999)
    aged.store.advance(hours=3)
    done = clean_up(aged.manifest, HALF_A_DAY, writer=WriterIdentity("pod-0", "run", 4))
    (horizon,) = fresh(aged.manifest).changes(12, done.newest)
    assert horizon.writer.ingester_id == "pod-0"
    with pytest.raises(VersionNotKept):
        fresh(aged.manifest).load(14)
