"""Garbage collection runs concurrently with readers and writers.

Late uploads are repeated, paused writers win no version, and readers of kept versions continue.
"""

from __future__ import annotations

import pytest

from persist.manifest import (
    Action,
    CleanUpPlan,
    Horizon,
    Manifest,
    Proposal,
    Removals,
    Remove,
    Retention,
    TableState,
    UploadExpired,
    VersionNotKept,
    clean_up,
    plan_clean_up,
)
from persist.manifest.files import CommitRecord, encode_changelog, encode_commit
from persist.manifest.paths import changelog_path, commit_path, parse_entry
from tests.persist.manifest.conftest import EVERY_STORE, IN_MEMORY
from tests.persist.manifest.samples import ME, OTHER, applied, fresh, put_in
from tests.persist.manifest.stores import ClockedStore
from tests.persist.manifest.yard import HALF_A_DAY, Yard, upload

LAST_TEN = Retention(retain_s=0, orphan_grace_s=3600)


def clean(yard: Yard, retention: Retention = LAST_TEN) -> int:
    """Run garbage collection in a new process; the oldest kept version."""
    return clean_up(fresh(yard.manifest), retention).oldest


def next_seq(state: TableState) -> int:
    """The sequence number that :meth:`Yard.persist` would use next."""
    return max(state.applied.values()) + 1


@EVERY_STORE
def test_a_late_upload_is_refused_and_repeated_and_nothing_is_lost(yard: Yard) -> None:
    yard.live(12)
    seq = next_seq(yard.head)
    late = upload(yard.manifest, "late", seq)
    yard.store.advance(hours=3)
    clean(yard)
    assert not [name for name in yard.names(".parquet") if "late" in name]
    with pytest.raises(UploadExpired) as refused:
        put_in(yard.manifest, yard.head, Proposal([late, applied(seq)]))
    assert refused.value.adds == (late,)
    again = upload(yard.manifest, "again", seq)
    after = put_in(yard.manifest, yard.head, Proposal([again, applied(seq)]))
    assert (late.path in after.files, again.path in after.files) == (False, True)
    assert after.rows == yard.head.rows + 10
    assert fresh(yard.manifest).load() == after


def test_an_upload_that_commits_between_plan_and_horizon_is_kept(yard: Yard) -> None:
    yard.live(12)
    seq = next_seq(yard.head)
    late = upload(yard.manifest, "late", seq)
    gone = upload(yard.manifest, "gone", 999)
    yard.store.advance(hours=3)
    yard.store.meanwhile = lambda: yard.states.append(
        put_in(yard.manifest, yard.head, Proposal([late, applied(seq)]))
    )
    clean(yard)
    assert late.path in yard.head.files
    yard.check_kept(3)
    assert yard.store.exists(yard.manifest.object_path(gone.path)) is None


def test_a_file_added_and_removed_between_plan_and_horizon_is_kept_for_its_version(
    yard: Yard,
) -> None:
    yard.live(12)
    late = upload(yard.manifest, "late", 999, kind="push")
    yard.store.advance(hours=3)

    def twice() -> None:
        yard.states.append(put_in(yard.manifest, yard.head, Proposal([late])))
        remove = Proposal([Remove(late.path, "no more")])
        yard.states.append(put_in(yard.manifest, yard.head, remove))

    yard.store.meanwhile = twice
    clean(yard)
    yard.check_kept(3)


def test_covered_files_need_no_second_upload(yard: Yard) -> None:
    yard.live(12)
    covered = upload(yard.manifest, "covered", 1)
    yard.store.advance(hours=3)
    clean(yard)
    yard.states.append(fresh(yard.manifest).load())
    after = put_in(yard.manifest, yard.head, Proposal([covered, applied(1)]))
    assert after is yard.head


@pytest.mark.parametrize("kind", ["rewrite", "push"])
def test_late_rewrites_and_pushes_are_refused_too(yard: Yard, kind: str) -> None:
    yard.live(12)
    late = upload(yard.manifest, "late", 1, kind=kind)
    upload(yard.manifest, "orphan", 1)
    yard.store.advance(hours=3)
    clean(yard)
    with pytest.raises(UploadExpired):
        put_in(yard.manifest, yard.head, Proposal([late]))


def test_a_horizon_never_goes_back(yard: Yard) -> None:
    yard.live(12)
    upload(yard.manifest, "one", 999)
    yard.store.advance(hours=3)
    clean(yard)
    first = fresh(yard.manifest).load()
    upload(yard.manifest, "two", 999)
    yard.store.advance(hours=3)
    # Neither a late commit of an older horizon nor a longer grace moves it back.
    older = Proposal([Horizon(at="2026-01-01T00:00:00+00:00")])
    assert put_in(yard.manifest, first, older) is first
    clean(yard, Retention(retain_s=0, orphan_grace_s=5 * 3600))
    assert fresh(yard.manifest).load().horizon == first.horizon
    clean(yard)
    second = fresh(yard.manifest).load()
    assert second.horizon is not None
    assert first.horizon is not None
    assert second.horizon > first.horizon
    assert not [name for name in yard.names(".parquet") if "two" in name]


def test_a_writer_commits_during_garbage_collection(yard: Yard) -> None:
    yard.live(30, snapshots=(20,))
    yard.plant_strays(("ffffffff",))
    yard.store.advance(hours=2)
    deletes = 0

    def meanwhile(path: str) -> None:
        nonlocal deletes
        deletes += 1
        if deletes % 9 == 1:
            yard.states[-1] = fresh(yard.manifest).load()
            yard.persist()

    first = yard.head.version
    yard.store.on_delete = meanwhile
    oldest = clean(yard, HALF_A_DAY)
    yard.store.on_delete = lambda path: None
    assert yard.head.version > first + 5
    assert fresh(yard.manifest).load() == yard.head
    yard.states = [state for state in yard.states if state.version != first + 1]
    yard.check_kept(oldest)


@pytest.mark.parametrize("what", ["persist", "rewrite"])
def test_a_paused_writer_cannot_create_a_deleted_version_again(yard: Yard, what: str) -> None:
    """The writer continues right before its create, when its version's number is free again."""
    yard.live(12)
    asleep = yard.head
    late = upload(yard.manifest, "asleep", 5, kind=what, writer=OTHER)
    more = [applied(5, writer=OTHER)]
    actions: list[Action] = [late, *(more if what == "persist" else [])]

    def live_and_clean() -> None:
        yard.live(40)
        clean(yard)
        assert yard.store.exists(commit_path(yard.manifest.folder, 13)) is None

    yard.store.meanwhile = live_and_clean
    with pytest.raises(UploadExpired):
        put_in(fresh(yard.manifest), asleep, Proposal(actions), OTHER)
    assert yard.store.exists(commit_path(yard.manifest.folder, 13)) is not None
    yard.check_kept(31)
    clean(yard)
    assert yard.store.exists(commit_path(yard.manifest.folder, 13)) is None
    yard.check_kept(fresh(yard.manifest).head() - 9)


def test_a_stray_commit_right_below_the_kept_versions_does_not_count(yard: Yard) -> None:
    yard.live(30)
    oldest = clean(yard)
    below = yard.states[oldest - 2]
    place = (below.version, "sleeper")
    lineage = (*below.lineage[:-1], place)
    log = changelog_path(yard.manifest.folder, *place)
    yard.store.put(log, encode_changelog(lineage, [applied(999)]))
    parent = yard.states[oldest - 3].uid
    stray = CommitRecord(version=place[0], uid=place[1], parent=parent, writer=ME, at="2026-11-21")
    yard.store.create(commit_path(yard.manifest.folder, place[0]), encode_commit(stray))
    with pytest.raises(VersionNotKept):
        fresh(yard.manifest).load(place[0])
    yard.check_kept(oldest)
    assert clean(yard) >= oldest
    assert yard.versions_of(".commit")[0] >= oldest


def reading(yard: Yard, version: int, pause_at: int, meanwhile: object) -> TableState | None:
    """Read a version, pausing before one call; None if the reader finishes before that call."""
    store = ClockedStore(yard.store)
    calls = 0
    met = False

    def on_call(call: str, path: str) -> None:
        nonlocal calls, met
        calls += 1
        if calls == pause_at:
            met = True
            assert callable(meanwhile)
            meanwhile()

    store.on_call = on_call
    state = Manifest(store, "ns", "flights").load(version)
    return state if met else None


@pytest.mark.parametrize(
    ("real_store", "version", "stride"),
    [("memory", 36, 1), ("memory", 44, 1), pytest.param("s3", 36, 17, marks=pytest.mark.s3)],
    indirect=["real_store"],
)
def test_a_reader_of_an_old_kept_version_continues_during_garbage_collection(
    yard: Yard, version: int, stride: int
) -> None:
    """A reader's base is deleted and replaced by a new one, at each ``stride``-th of its calls."""
    yard.live(45)
    before = yard.contents()
    pause_at = 1
    while state := reading(yard, version, pause_at, lambda: clean(yard)):
        assert state == yard.states[version - 1]
        yard.back_to(before)
        pause_at += stride
    assert pause_at > 10


@IN_MEMORY
def test_a_reader_of_a_deleted_version_gets_an_error_or_the_whole_version(yard: Yard) -> None:
    yard.live(45)
    before = yard.contents()
    told = 0
    for pause_at in range(1, 12):
        try:
            state = reading(yard, 20, pause_at, lambda: clean(yard))
            assert state in (None, yard.states[19])
        except VersionNotKept:
            told += 1
        yard.back_to(before)
    assert told > 2


def test_a_writer_continues_from_a_state_older_than_the_garbage_collection(yard: Yard) -> None:
    """Its lineage begins below the kept versions; its commit can be read all the same."""
    yard.live(45)
    old = yard.head
    assert old.lineage[0][0] == 1
    clean(yard)
    after = put_in(fresh(yard.manifest), old, Proposal([applied(5, writer=OTHER)]), OTHER)
    assert fresh(yard.manifest).load() == after
    assert fresh(yard.manifest).refresh(old) == after


def test_a_plan_reuses_knowledge_of_the_previous_one(yard: Yard) -> None:
    """Only newer changelogs are read, and the plan is the same."""
    removals, read = Removals(), set[int]()

    def note(call: str, path: str) -> None:
        entry = parse_entry(path)
        if call == "get" and entry is not None and entry.kind == "changelog":
            read.add(entry.version)

    def planned(known: Removals | None) -> tuple[CleanUpPlan, set[int]]:
        read.clear()
        plan = plan_clean_up(yard.manifest, HALF_A_DAY, known=yard.head, removals=known)
        return plan, {version for version in read if version > plan.oldest}

    yard.store.on_call = note
    yard.live(22)
    first, _ = planned(removals)
    seen = first.state.version
    yard.live(27)
    plan, since = planned(removals)
    anew, everything = planned(None)
    kept = set(range(plan.oldest + 1, plan.state.version + 1))
    assert plan.data
    assert (plan.data, plan.commits, plan.changelogs) == (anew.data, anew.commits, anew.changelogs)
    assert everything == kept
    assert since == {version for version in kept if version > seen} != kept
