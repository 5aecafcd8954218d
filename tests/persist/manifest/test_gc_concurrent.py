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
from tests.persist.manifest.aged_table import HALF_A_DAY, AgedTable, upload
from tests.persist.manifest.conftest import EVERY_STORE, IN_MEMORY
from tests.persist.manifest.samples import ME, OTHER, applied, fresh, put_in
from tests.persist.manifest.stores import ClockedStore

LAST_TEN = Retention(retain_s=0, orphan_grace_s=3600)


def clean(aged: AgedTable, retention: Retention = LAST_TEN) -> int:
    """Run garbage collection in a new process; the oldest kept version."""
    return clean_up(fresh(aged.manifest), retention).oldest


def next_seq(state: TableState) -> int:
    """The sequence number that :meth:`AgedTable.persist` would use next."""
    return max(state.applied.values()) + 1


@EVERY_STORE
def test_a_late_upload_is_refused_and_repeated_and_nothing_is_lost(aged: AgedTable) -> None:
    aged.live(12)
    seq = next_seq(aged.head)
    late = upload(aged.manifest, "late", seq)
    aged.store.advance(hours=3)
    clean(aged)
    assert not [name for name in aged.names(".parquet") if "late" in name]
    with pytest.raises(UploadExpired) as refused:
        put_in(aged.manifest, aged.head, Proposal([late, applied(seq)]))
    assert refused.value.adds == (late,)
    again = upload(aged.manifest, "again", seq)
    after = put_in(aged.manifest, aged.head, Proposal([again, applied(seq)]))
    assert (late.path in after.files, again.path in after.files) == (False, True)
    assert after.rows == aged.head.rows + 10
    assert fresh(aged.manifest).load() == after


def test_an_upload_that_commits_between_plan_and_horizon_is_kept(aged: AgedTable) -> None:
    aged.live(12)
    seq = next_seq(aged.head)
    late = upload(aged.manifest, "late", seq)
    gone = upload(aged.manifest, "gone", 999)
    aged.store.advance(hours=3)
    aged.store.meanwhile = lambda: aged.states.append(
        put_in(aged.manifest, aged.head, Proposal([late, applied(seq)]))
    )
    clean(aged)
    assert late.path in aged.head.files
    aged.check_kept(3)
    assert aged.store.exists(aged.manifest.object_path(gone.path)) is None


def test_a_file_added_and_removed_between_plan_and_horizon_is_kept_for_its_version(
    aged: AgedTable,
) -> None:
    aged.live(12)
    late = upload(aged.manifest, "late", 999, kind="push")
    aged.store.advance(hours=3)

    def twice() -> None:
        aged.states.append(put_in(aged.manifest, aged.head, Proposal([late])))
        remove = Proposal([Remove(late.path, "no more")])
        aged.states.append(put_in(aged.manifest, aged.head, remove))

    aged.store.meanwhile = twice
    clean(aged)
    aged.check_kept(3)


def test_covered_files_need_no_second_upload(aged: AgedTable) -> None:
    aged.live(12)
    covered = upload(aged.manifest, "covered", 1)
    aged.store.advance(hours=3)
    clean(aged)
    aged.states.append(fresh(aged.manifest).load())
    after = put_in(aged.manifest, aged.head, Proposal([covered, applied(1)]))
    assert after is aged.head


@pytest.mark.parametrize("kind", ["rewrite", "push"])
def test_late_rewrites_and_pushes_are_refused_too(aged: AgedTable, kind: str) -> None:
    aged.live(12)
    late = upload(aged.manifest, "late", 1, kind=kind)
    upload(aged.manifest, "orphan", 1)
    aged.store.advance(hours=3)
    clean(aged)
    with pytest.raises(UploadExpired):
        put_in(aged.manifest, aged.head, Proposal([late]))


def test_a_horizon_never_decreases(aged: AgedTable) -> None:
    aged.live(12)
    upload(aged.manifest, "one", 999)
    aged.store.advance(hours=3)
    clean(aged)
    first = fresh(aged.manifest).load()
    upload(aged.manifest, "two", 999)
    aged.store.advance(hours=3)
    # Neither a late commit of an older horizon nor a longer grace moves it back.
    older = Proposal([Horizon(at="2026-01-01T00:00:00+00:00")])
    assert put_in(aged.manifest, first, older) is first
    clean(aged, Retention(retain_s=0, orphan_grace_s=5 * 3600))
    assert fresh(aged.manifest).load().horizon == first.horizon
    clean(aged)
    second = fresh(aged.manifest).load()
    assert second.horizon is not None
    assert first.horizon is not None
    assert second.horizon > first.horizon
    assert not [name for name in aged.names(".parquet") if "two" in name]


def test_a_writer_commits_during_garbage_collection(aged: AgedTable) -> None:
    aged.live(30, snapshots=(20,))
    aged.plant_strays(("ffffffff",))
    aged.store.advance(hours=2)
    deletes = 0

    def meanwhile(path: str) -> None:
        nonlocal deletes
        deletes += 1
        if deletes % 9 == 1:
            aged.states[-1] = fresh(aged.manifest).load()
            aged.persist()

    first = aged.head.version
    aged.store.on_delete = meanwhile
    oldest = clean(aged, HALF_A_DAY)
    aged.store.on_delete = lambda path: None
    assert aged.head.version > first + 5
    assert fresh(aged.manifest).load() == aged.head
    aged.states = [state for state in aged.states if state.version != first + 1]
    aged.check_kept(oldest)


@pytest.mark.parametrize("what", ["persist", "rewrite"])
def test_a_paused_writer_cannot_create_a_deleted_version_again(aged: AgedTable, what: str) -> None:
    """The writer continues right before its create, when its version's number is free again."""
    aged.live(12)
    asleep = aged.head
    late = upload(aged.manifest, "asleep", 5, kind=what, writer=OTHER)
    more = [applied(5, writer=OTHER)]
    actions: list[Action] = [late, *(more if what == "persist" else [])]

    def live_and_clean() -> None:
        aged.live(40)
        clean(aged)
        assert aged.store.exists(commit_path(aged.manifest.folder, 13)) is None

    aged.store.meanwhile = live_and_clean
    with pytest.raises(UploadExpired):
        put_in(fresh(aged.manifest), asleep, Proposal(actions), OTHER)
    assert aged.store.exists(commit_path(aged.manifest.folder, 13)) is not None
    aged.check_kept(31)
    clean(aged)
    assert aged.store.exists(commit_path(aged.manifest.folder, 13)) is None
    aged.check_kept(fresh(aged.manifest).head() - 9)


def test_a_stray_commit_right_below_the_kept_versions_does_not_count(aged: AgedTable) -> None:
    aged.live(30)
    oldest = clean(aged)
    below = aged.states[oldest - 2]
    place = (below.version, "sleeper")
    lineage = (*below.lineage[:-1], place)
    log = changelog_path(aged.manifest.folder, *place)
    aged.store.put(log, encode_changelog(lineage, [applied(999)]))
    parent = aged.states[oldest - 3].uid
    stray = CommitRecord(version=place[0], uid=place[1], parent=parent, writer=ME, at="2026-11-21")
    aged.store.create(commit_path(aged.manifest.folder, place[0]), encode_commit(stray))
    with pytest.raises(VersionNotKept):
        fresh(aged.manifest).load(place[0])
    aged.check_kept(oldest)
    assert clean(aged) >= oldest
    assert aged.versions_of(".commit")[0] >= oldest


def reading(aged: AgedTable, version: int, pause_at: int, meanwhile: object) -> TableState | None:
    """Read a version, pausing before one call; None if the reader finishes before that call."""
    store = ClockedStore(aged.store)
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
    aged: AgedTable, version: int, stride: int
) -> None:
    """A reader's base is deleted and replaced by a new one, at each ``stride``-th of its calls."""
    aged.live(45)
    before = aged.contents()
    pause_at = 1
    while state := reading(aged, version, pause_at, lambda: clean(aged)):
        assert state == aged.states[version - 1]
        aged.back_to(before)
        pause_at += stride
    assert pause_at > 10


@IN_MEMORY
def test_a_reader_of_a_deleted_version_gets_an_error_or_the_whole_version(aged: AgedTable) -> None:
    aged.live(45)
    before = aged.contents()
    told = 0
    for pause_at in range(1, 12):
        try:
            state = reading(aged, 20, pause_at, lambda: clean(aged))
            assert state in (None, aged.states[19])
        except VersionNotKept:
            told += 1
        aged.back_to(before)
    assert told > 2


def test_a_writer_continues_from_a_state_older_than_the_garbage_collection(aged: AgedTable) -> None:
    """Its lineage begins below the kept versions; its commit can be read all the same."""
    aged.live(45)
    old = aged.head
    assert old.lineage[0][0] == 1
    clean(aged)
    after = put_in(fresh(aged.manifest), old, Proposal([applied(5, writer=OTHER)]), OTHER)
    assert fresh(aged.manifest).load() == after
    assert fresh(aged.manifest).refresh(old) == after


def test_a_plan_reuses_knowledge_of_the_previous_one(aged: AgedTable) -> None:
    """Only newer changelogs are read, and the plan is the same."""
    removals, read = Removals(), set[int]()

    def note(call: str, path: str) -> None:
        entry = parse_entry(path)
        if call == "get" and entry is not None and entry.kind == "changelog":
            read.add(entry.version)

    def planned(known: Removals | None) -> tuple[CleanUpPlan, set[int]]:
        read.clear()
        plan = plan_clean_up(aged.manifest, HALF_A_DAY, known=aged.head, removals=known)
        return plan, {version for version in read if version > plan.oldest}

    aged.store.on_call = note
    aged.live(22)
    first, _ = planned(removals)
    seen = first.state.version
    aged.live(27)
    plan, since = planned(removals)
    anew, everything = planned(None)
    kept = set(range(plan.oldest + 1, plan.state.version + 1))
    assert plan.data
    assert (plan.data, plan.commits, plan.changelogs) == (anew.data, anew.commits, anew.changelogs)
    assert everything == kept
    assert since == {version for version in kept if version > seen} != kept
