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
from tests.persist.manifest.conftest import EVERY_STORE
from tests.persist.manifest.samples import fresh
from tests.persist.manifest.yard import HALF_A_DAY, Yard, upload


def clean(yard: Yard, retention: Retention = HALF_A_DAY) -> CleanUp:
    return clean_up(fresh(yard.manifest), retention)


def test_versions_that_are_young_or_among_the_last_ten_are_kept(yard: Yard) -> None:
    yard.live(30)
    assert clean(yard).oldest == 16
    yard.check_kept(16)
    assert clean(yard, Retention(retain_s=0, orphan_grace_s=3600)).oldest >= 21
    yard.check_kept(fresh(yard.manifest).head() - 9)


def test_a_table_of_a_few_versions_loses_none(yard: Yard) -> None:
    yard.live(9)
    yard.store.advance(days=30)
    done = clean(yard)
    assert (done.oldest_before, done.oldest, done.files) == (1, 1, 0)
    assert done.horizon is None
    yard.check_kept(1)


def test_a_table_that_does_not_exist_is_not_cleaned(yard: Yard) -> None:
    with pytest.raises(TableNotFound):
        clean(yard)


@EVERY_STORE
def test_stray_uids_at_every_version_are_deleted_and_ignored(yard: Yard) -> None:
    """Later versions are not read from a stray snapshot of a kept version."""
    yard.live(30, snapshots=(12, 24))
    yard.plant_strays()
    yard.store.advance(hours=2)
    done = clean(yard)
    assert done.oldest == 18
    yard.check_kept(18)
    left = yard.names(".changelog") + yard.names(".snapshot") + yard.names(".parquet")
    assert not [name for name in left if "00000000." in name or "ffffffff." in name]
    assert not [name for name in left if "stray" in name]


def test_strays_within_the_grace_stay(yard: Yard) -> None:
    yard.live(20)
    yard.plant_strays(("ffffffff",))
    clean(yard)
    assert len([name for name in yard.names(".parquet") if "stray" in name]) == 20
    kept = [name for name in yard.names(".snapshot") if "ffffffff" in name]
    assert len(kept) == 20
    yard.check_kept(6)


def test_an_attempt_above_the_head_is_never_garbage(yard: Yard) -> None:
    """Its writer may be paused, and win the version when it continues."""
    yard.live(12)
    path = changelog_path(yard.manifest.folder, 13, "asleep")
    yard.store.put(path, b"whatever")
    yard.store.advance(days=30)
    clean(yard)
    assert path in yard.names(".changelog")


def test_changelogs_that_the_oldest_kept_version_is_read_from_stay(yard: Yard) -> None:
    yard.live(30, snapshots=(12, 24))
    clean(yard)
    assert len(yard.names(".snapshot")) == 2
    assert yard.versions_of(".changelog") == list(range(12, 32))
    yard.check_kept(16)


def test_a_snapshot_is_written_instead_of_keeping_many_old_changelogs(yard: Yard) -> None:
    yard.live(45)
    done = clean(yard)
    assert (done.oldest, done.snapshot_version) == (31, 31)
    assert yard.versions_of(".changelog") == list(range(31, 47))
    yard.check_kept(31)


@pytest.mark.parametrize("damage", [b"", b"INGSNAP1 and nothing else"])
def test_a_damaged_snapshot_is_replaced_before_older_objects_are_deleted(
    yard: Yard, damage: bytes
) -> None:
    yard.live(30, snapshots=(12, 15))
    at = yard.states[14]
    yard.store.put(snapshot_path(yard.manifest.folder, at.version, at.uid), damage)
    done = clean(yard)
    assert (done.oldest, done.snapshot_version) == (16, 16)
    yard.check_kept(16)


def test_files_that_only_an_old_kept_version_lists_stay_until_it_is_deleted(yard: Yard) -> None:
    yard.live(30)
    before = set(yard.names(".parquet"))
    clean(yard)
    gone = before - set(yard.names(".parquet"))
    listed = {yard.manifest.object_path(p) for state in yard.states[15:] for p in state.files}
    ever = {yard.manifest.object_path(p) for state in yard.states for p in state.files}
    assert gone == ever - listed
    assert gone


def test_a_horizon_is_committed_before_the_first_data_file_is_deleted(yard: Yard) -> None:
    yard.live(12)
    upload(yard.manifest, "orphan", 999)
    yard.store.advance(hours=3)
    horizons: list[str | None] = []

    def note(path: str) -> None:
        if path.endswith(".parquet"):
            horizons.append(fresh(yard.manifest).load().horizon)

    yard.store.on_delete = note
    done = clean(yard)
    assert (done.data.files, done.data.bytes) == (1, len("orphan"))
    assert horizons == [done.horizon]
    assert done.newest == 13


@EVERY_STORE
def test_a_second_run_does_nothing_and_makes_no_version(yard: Yard) -> None:
    yard.live(30, snapshots=(20,))
    yard.plant_strays()
    yard.store.advance(hours=2)
    first = clean(yard)
    assert first.files > 100
    names = yard.names("")
    second = clean(yard)
    assert (second.files, second.horizon, second.newest) == (0, None, first.newest)
    assert yard.names("") == names


def test_a_dry_run_says_what_a_run_does_and_changes_nothing(yard: Yard) -> None:
    yard.live(45)
    yard.plant_strays(("ffffffff",))
    yard.store.advance(hours=2)
    names = yard.names("")
    yard.store.calls.clear()
    planned = clean_up(yard.manifest, HALF_A_DAY, dry_run=True)
    assert yard.names("") == names
    assert not {"put", "create", "delete"} & set(yard.store.calls)
    done = clean(yard)
    assert planned.dry_run
    assert not done.dry_run
    for kind in ("oldest", "snapshot_version", "commits", "changelogs", "snapshots", "data"):
        assert getattr(planned, kind) == getattr(done, kind), kind
    assert done.newest == planned.newest + 1


def test_commits_are_deleted_in_ascending_order(yard: Yard) -> None:
    yard.live(30)
    clean(yard)
    commits = [path for path in yard.store.deleted if path.endswith(".commit")]
    assert commits == sorted(commits)
    assert len(commits) == 15
    assert yard.store.deleted[:15] == commits


def test_foreign_files_are_left_alone(yard: Yard) -> None:
    yard.live(30)
    foreign = [f"{yard.manifest.root}/data/notes.txt", f"{yard.manifest.folder}readme.commit"]
    for path in foreign:
        yard.store.put(path, b"mine")
    yard.store.advance(days=3)
    clean(yard)
    for path in foreign:
        assert yard.store.get(path) == b"mine"


def test_garbage_collection_neither_fences_nor_is_fenced(yard: Yard) -> None:
    yard.live(12)
    upload(yard.manifest, "orphan", 999)
    yard.store.advance(hours=3)
    clean(yard)
    yard.states.append(fresh(yard.manifest).load())
    assert yard.head.writers == yard.states[-2].writers
    assert janitor() != janitor()
    yard.persist()
    yard.check_kept(1)


def test_a_given_identity_commits_the_horizon(yard: Yard) -> None:
    yard.live(12)
    upload(yard.manifest, "orphan", 999)
    yard.store.advance(hours=3)
    done = clean_up(yard.manifest, HALF_A_DAY, writer=WriterIdentity("pod-0", "run", 4))
    (horizon,) = fresh(yard.manifest).changes(12, done.newest)
    assert horizon.writer.ingester_id == "pod-0"
    with pytest.raises(VersionNotKept):
        fresh(yard.manifest).load(14)
