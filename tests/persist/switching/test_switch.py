"""Table versions: numbers, and switches and rollbacks that are interrupted at any step."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from persist.manifest import (
    Action,
    Applied,
    CheckpointAction,
    Horizon,
    Manifest,
    ManifestDamaged,
    MomentNotKept,
    OriginAction,
    Properties,
    Proposal,
    Remove,
    Retention,
    Schema,
    SharedState,
    SwitchedMeanwhile,
    SwitchRefused,
    TableVersionNotKept,
    Txn,
    VersionSealed,
    WriterAction,
    carry_out,
    claim_version,
    clean_up,
    commit,
    give_up_version,
    list_tables,
    list_versions,
    plan_clean_up,
    push_mark,
    write_snapshot,
)
from persist.store import ObjectStore, PutInfo
from persist.switching import (
    finish_switch,
    roll_back,
    rollback_target,
    switch_version,
    version_at,
)
from tests.drivers.pushing import Killed, KillingStore
from tests.persist.manifest.conftest import EVERY_STORE, IN_MEMORY
from tests.persist.manifest.samples import DEFINITION, ME, OTHER, add, applied

TABLE = ("ns", "flights")
FILE_BYTES = 1000
"""The size that the sample files claim to have."""
CURRENT = "ns/flights/_current/"


def manifest_of(store: ObjectStore, version: int | None = None) -> Manifest:
    """The table's manifest, as a newly started process opens it."""
    return Manifest(store, *TABLE, version)


def commit_to(store: ObjectStore, version: int | None, *actions: Action, writer: Any = ME) -> None:
    """Commit to a table version, by default to the current one."""
    commit(manifest_of(store, version), None, Proposal(actions), writer)


def file_of(store: ObjectStore, version: int, path: str) -> None:
    """Put a data file into the folder of a table version."""
    store.put(manifest_of(store, version).object_path(path), path.encode().ljust(FILE_BYTES))


def stream(store: ObjectStore, version: int, path: str, seq: int) -> None:
    """Flush one file into a version."""
    file_of(store, version, path)
    commit_to(store, version, add(path, seq), applied(seq))


def make_table(store: ObjectStore) -> int:
    """Version 1 with streamed rows and the state of their writers; a pushed version 2."""
    commit_to(store, 1, *DEFINITION)
    commit_to(store, 1, WriterAction("me", "first", 1, "open"))
    stream(store, 1, "data/a.parquet", 7)
    commit_to(
        store,
        1,
        OriginAction("source", "me", 1, 40, ()),
        SharedState("s" * 64, "AAAA"),
        CheckpointAction("topic-0", "AAAA", "s" * 64, "me", 1, 7),
        Txn("spark", 3),
    )
    version = claim_version(store, *TABLE, "push-1")
    push(store, version)
    return version


def push(store: ObjectStore, version: int) -> None:
    """Commit the same as a push: the table's definition, and one file."""
    path = f"data/pushed-{version}.parquet"
    commit_to(store, version, *DEFINITION, writer=OTHER)
    file_of(store, version, path)
    commit_to(store, version, add(path, 0, kind="push", writer=OTHER), writer=OTHER)


def paths(store: ObjectStore, version: int | None = None) -> set[str]:
    """The files of a version, all of which exist."""
    manifest = manifest_of(store, version)
    found = set(manifest.load().files)
    assert all(store.exists(manifest.object_path(path)) for path in found)
    return found


def writer_positions(store: ObjectStore, version: int) -> tuple[object, ...]:
    """The state of the writers that a version records."""
    state = manifest_of(store, version).load()
    return (
        dict(state.writers),
        dict(state.applied),
        state.epochs_complete,
        dict(state.origins),
        dict(state.checkpoints),
        dict(state.shared_states),
        dict(state.txns),
        state.owner,
    )


# Numbers


@EVERY_STORE
def test_each_push_has_its_own_version_number(real_store: ObjectStore) -> None:
    names = [f"push-{number % 5}" for number in range(20)]
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda name: claim_version(real_store, *TABLE, name), names))
    of_push = {name: {got[i] for i, one in enumerate(names) if one == name} for name in names}
    assert all(len(numbers) == 1 for numbers in of_push.values())
    assert {number for numbers in of_push.values() for number in numbers} == {2, 3, 4, 5, 6}


def test_a_number_is_above_manually_made_versions_and_is_never_reused(
    real_store: ObjectStore,
) -> None:
    commit_to(real_store, 1, *DEFINITION)
    commit_to(real_store, 2, *DEFINITION)
    assert claim_version(real_store, *TABLE, "one") == 3
    give_up_version(real_store, *TABLE, 3)
    give_up_version(real_store, *TABLE, 3)
    assert claim_version(real_store, *TABLE, "two") == 4
    assert claim_version(real_store, *TABLE, "one") == 3
    found = {each.version: each for each in list_versions(real_store, *TABLE)}
    assert list(found) == [1, 2, 3, 4]
    assert [each.current for each in found.values()] == [True, False, False, False]
    assert found[3].gone is not None and not found[3].kept
    assert found[4].claim is not None and found[4].claim.push_id == "two"
    with pytest.raises(ValueError, match="without an id"):
        claim_version(real_store, *TABLE, "")


def test_foreign_objects_are_refused_by_name(real_store: ObjectStore) -> None:
    make_table(real_store)
    for path, data in (
        (f"{CURRENT}latest", b"{}"),
        (f"{CURRENT}{1:020d}", b'{"table_version": "two"}'),
        (f"{CURRENT}{1:020d}", b'{"table_version": 0}'),
        (f"{CURRENT}{1:020d}", b"\xff"),
        (f"{CURRENT}{1:020d}", b'{"table_version": 1, "at": "\xff"}'),
        (f"{CURRENT}{1:020d}", b"[" * 100_000),
        ("ns/flights/_versions/tag", b""),
        ("ns/flights/_versions/00000000000000000009", b"[]"),
    ):
        real_store.put(path, data)
        with pytest.raises(ManifestDamaged, match=path):
            list_versions(real_store, *TABLE)
        if path.startswith(CURRENT):
            with pytest.raises(ManifestDamaged, match=path):
                manifest_of(real_store).load()
        real_store.delete(path)
    assert paths(real_store) == {"data/a.parquet"}


# Switching


@EVERY_STORE
def test_a_switch_shows_the_new_version_and_keeps_the_knowledge_of_writers(
    real_store: ObjectStore,
) -> None:
    version = make_table(real_store)
    reading = manifest_of(real_store)
    before = reading.load()
    switch = switch_version(real_store, *TABLE, version, push_id="push-1")
    assert (switch.table_version, switch.previous, switch.push_id) == (2, 1, "push-1")
    assert paths(real_store) == {"data/pushed-2.parquet"}
    assert writer_positions(real_store, 2) == writer_positions(real_store, 1)
    assert set(reading.refresh(before).files) == {"data/a.parquet"}, "a reader stays with its own"
    assert paths(real_store, 1) == {"data/a.parquet"}
    assert [each.current for each in list_versions(real_store, *TABLE)] == [False, True]
    assert list_tables(real_store) == [TABLE]
    again = switch_version(real_store, *TABLE, version, push_id="push-1")
    assert again == switch and len(list(real_store.list(CURRENT))) == 1


@IN_MEMORY
def test_push_marks_stay_with_their_version(real_store: ObjectStore) -> None:
    """Otherwise each version would keep the marks of all earlier pushes."""
    commit_to(real_store, 1, *DEFINITION)
    commit_to(real_store, 1, Txn("spark", 3))
    for number in range(2, 6):
        version = claim_version(real_store, *TABLE, f"push-{number}")
        push(real_store, version)
        mark = push_mark(f"push-{number}", "data")
        commit_to(real_store, version, Txn(mark, 10), writer=OTHER)
        switch_version(real_store, *TABLE, version)
        assert dict(manifest_of(real_store).load().txns) == {"spark": 3, mark: 10}
    roll_back(real_store, *TABLE)
    assert dict(manifest_of(real_store).load().txns) == {"spark": 3, "_push/push-4/data": 10}


def test_a_sealed_version_accepts_only_a_horizon(real_store: ObjectStore) -> None:
    switch_version(real_store, *TABLE, make_table(real_store))
    refused: list[tuple[Action, ...]] = [
        (add("data/b.parquet", 8), applied(8)),
        (Remove("data/a.parquet", "compaction"),),
        (CheckpointAction("topic-0", "BBBB", None, "me", 1, 9),),
        (OriginAction("source", "me", 1, 41, ()),),
        (WriterAction("me", "first", 1, "closed"),),
        (Schema(schema_id=2, arrow="BBBB"),),
        (Txn("spark", 4),),
    ]
    for actions in refused:
        with pytest.raises(VersionSealed, match="table version 2 replaces it"):
            commit_to(real_store, 1, *actions)
    commit_to(real_store, 1, Horizon("2026-11-21T00:00:00+00:00"))
    # A commit of known rows succeeds: a flush whose answer was lost learns that it is done.
    commit_to(real_store, 1, add("data/a.parquet", 7), applied(7))
    assert paths(real_store, 1) == {"data/a.parquet"}


def test_the_seal_and_the_imports_are_in_snapshots_too(real_store: ObjectStore) -> None:
    switch_version(real_store, *TABLE, make_table(real_store))
    for version in (1, 2):
        manifest = manifest_of(real_store, version)
        state = manifest.load()
        write_snapshot(manifest, state)
        again = manifest_of(real_store, version).load()
        assert (again, again.sealed, again.imports) == (state, state.sealed, state.imports)
    assert manifest_of(real_store, 1).load().switch == 1 == manifest_of(real_store, 2).load().switch


def other_definition(*, key: list[str], arrow: str) -> tuple[Action, ...]:
    properties = Properties(values={"primary_key": key, "timestamp_unit": "us"})
    return (replace(DEFINITION[0], arrow=arrow), DEFINITION[1], properties)


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        (other_definition(key=["v"], arrow="AAAA"), "its primary_key is"),
        (other_definition(key=[], arrow="BBBB"), "its schema 1 differs"),
    ],
)
def test_a_version_of_another_kind_is_refused_and_nothing_is_sealed(
    real_store: ObjectStore, definition: tuple[Action, ...], reason: str
) -> None:
    make_table(real_store)
    commit_to(real_store, 3, *definition, writer=OTHER)
    with pytest.raises(SwitchRefused, match=reason):
        switch_version(real_store, *TABLE, 3)
    assert manifest_of(real_store).load().sealed is None
    stream(real_store, 1, "data/b.parquet", 8)


def test_columns_added_meanwhile_are_carried_over(real_store: ObjectStore) -> None:
    version = make_table(real_store)
    commit_to(real_store, 1, Schema(schema_id=2, arrow="BBBB"))
    switch_version(real_store, *TABLE, version)
    state = manifest_of(real_store).load()
    assert state.current_schema == Schema(schema_id=2, arrow="BBBB")


def test_a_missing_or_given_up_version_cannot_be_switched_to(real_store: ObjectStore) -> None:
    version = make_table(real_store)
    with pytest.raises(TableVersionNotKept, match=r"no table version 9; existing versions: 1, 2"):
        switch_version(real_store, *TABLE, 9)
    give_up_version(real_store, *TABLE, version)
    with pytest.raises(TableVersionNotKept, match=r"no table version 2; existing versions: 1"):
        switch_version(real_store, *TABLE, version)
    with pytest.raises(SwitchRefused, match="it is current"):
        give_up_version(real_store, *TABLE, 1)


# Rolling back


@EVERY_STORE
def test_a_rollback_carries_over_rows_streamed_meanwhile(
    real_store: ObjectStore,
) -> None:
    switch_version(real_store, *TABLE, make_table(real_store))
    assert rollback_target(real_store, *TABLE) == 1
    stream(real_store, 2, "data/b.parquet", 8)
    stream(real_store, 2, "data/c.parquet", 9)
    # A compaction of pushed and streamed rows into one file, which cannot be separated again.
    file_of(real_store, 2, "data/one.parquet")
    old = ("data/pushed-2.parquet", "data/b.parquet")
    removes = [Remove(path, "compaction") for path in old]
    commit_to(real_store, 2, *removes, add("data/one.parquet", 0, kind="rewrite"))
    switch = roll_back(real_store, *TABLE, push_id="push-1")
    assert (switch.table_version, switch.previous, switch.why) == (1, 2, "rollback")
    assert paths(real_store) == {"data/a.parquet", "data/b.parquet", "data/c.parquet"}
    assert manifest_of(real_store).load().applied_to("me", 1, 1, ("2026-11-21",)) == 9
    assert writer_positions(real_store, 1) == writer_positions(real_store, 2)
    stream(real_store, 1, "data/d.parquet", 10)
    assert rollback_target(real_store, *TABLE) is None
    with pytest.raises(SwitchRefused, match="no version was current before"):
        roll_back(real_store, *TABLE)


@EVERY_STORE
def test_rows_since_a_version_are_carried_over_once_and_not_back(
    real_store: ObjectStore,
) -> None:
    version = make_table(real_store)
    since = manifest_of(real_store).head()
    stream(real_store, 1, "data/b.parquet", 8)
    stream(real_store, 1, "data/c.parquet", 9)
    # A compaction of earlier rows with rows streamed since.
    file_of(real_store, 1, "data/one.parquet")
    removes = [Remove(path, "compaction") for path in ("data/a.parquet", "data/b.parquet")]
    commit_to(real_store, 1, *removes, add("data/one.parquet", 0, kind="rewrite"))
    switch_version(real_store, *TABLE, version, push_id="push-1", since=since, previous=1)
    came = {"data/b.parquet", "data/c.parquet"}
    assert paths(real_store) == {"data/pushed-2.parquet", *came}
    assert writer_positions(real_store, 1) == writer_positions(real_store, 2)
    # An append to the current version, as by Spark, counts like a flush.
    file_of(real_store, 2, "data/d.parquet")
    appended = add("data/d.parquet", 0, kind="push", writer=OTHER)
    commit_to(real_store, 2, appended, Txn("spark", 4), writer=OTHER)
    roll_back(real_store, *TABLE)
    assert paths(real_store) == {"data/one.parquet", "data/c.parquet", "data/d.parquet"}


def test_since_is_refused_if_the_rows_are_no_longer_known(real_store: ObjectStore) -> None:
    version = make_table(real_store)
    newest = manifest_of(real_store).head()
    told = manifest_of(real_store).changes(newest - 1, newest)
    moment = datetime.fromisoformat(told[0].at)
    assert version_at(manifest_of(real_store), moment) == newest
    assert version_at(manifest_of(real_store), moment - timedelta(microseconds=1)) < newest
    assert version_at(manifest_of(real_store), datetime(2020, 1, 1, tzinfo=UTC)) == 0
    for since, previous, reason in (
        (newest + 1, 1, f"has no version {newest + 1}"),
        (-1, 1, "has no version -1"),
        (newest, 2, "version 1 is current now, not 2"),
    ):
        with pytest.raises(SwitchRefused, match=reason):
            switch_version(real_store, *TABLE, version, since=since, previous=previous)
    clean_up(manifest_of(real_store), Retention(retain_s=0, orphan_grace_s=0, keep_versions=1))
    unknown = f"since manifest version {newest - 1} is no longer known"
    with pytest.raises(SwitchRefused, match=unknown):
        switch_version(real_store, *TABLE, version, since=newest - 1)
    with pytest.raises(MomentNotKept):
        version_at(manifest_of(real_store), datetime(2020, 1, 1, tzinfo=UTC))
    assert manifest_of(real_store).load().sealed is None
    switch_version(real_store, *TABLE, version)
    push(real_store, 3)
    with pytest.raises(SwitchRefused, match="is current only since its manifest version 3, not"):
        switch_version(real_store, *TABLE, 3, since=2)
    roll_back(real_store, *TABLE)
    with pytest.raises(SwitchRefused, match="it was current before"):
        switch_version(real_store, *TABLE, 2, since=manifest_of(real_store).head())


def test_garbage_collection_keeps_versions_that_a_switch_needs(real_store: ObjectStore) -> None:
    """One garbage collection is planned before the seal, and another runs after it."""
    version = make_table(real_store)
    since = manifest_of(real_store).head()
    for seq in (8, 9):
        stream(real_store, 1, f"data/{seq}.parquet", seq)
    nothing_kept = Retention(retain_s=0, orphan_grace_s=0, keep_versions=1)
    plan = plan_clean_up(manifest_of(real_store), nothing_kept)
    assert plan.oldest > since
    killing: Any = KillingStore(real_store, 4, done=True)  # two copies, then the seal
    with pytest.raises(Killed):
        switch_version(killing, *TABLE, version, since=since)
    carry_out(manifest_of(real_store), plan, plan.state)
    clean_up(manifest_of(real_store), nothing_kept)
    assert finish_switch(real_store, *TABLE).table_version == version
    assert paths(real_store) == {"data/pushed-2.parquet", "data/8.parquet", "data/9.parquet"}


def test_a_copy_that_may_be_deleted_is_made_again(real_store: ObjectStore) -> None:
    """The copy was made before the seal by a process that then paused."""
    version = make_table(real_store)
    since = manifest_of(real_store).head()
    stream(real_store, 1, "data/b.parquet", 8)
    killing: Any = KillingStore(real_store, 1, done=True)
    with pytest.raises(Killed):
        switch_version(killing, *TABLE, version, since=since)
    copy = manifest_of(real_store, version).object_path("data/b.parquet")
    assert real_store.exists(copy) is not None
    commit_to(real_store, version, Horizon(real_store.now().isoformat()), writer=OTHER)
    switch_version(real_store, *TABLE, version, since=since)
    state = manifest_of(real_store).load()
    assert state.horizon is not None and state.files["data/b.parquet"].at > state.horizon


def test_rows_can_be_left_behind_and_come_back_with_their_version(
    real_store: ObjectStore,
) -> None:
    switch_version(real_store, *TABLE, make_table(real_store))
    stream(real_store, 2, "data/b.parquet", 8)
    roll_back(real_store, *TABLE, carry=False)
    assert paths(real_store) == {"data/a.parquet"}
    # The version was current before, and can become current again.
    switch_version(real_store, *TABLE, 2)
    assert paths(real_store) == {"data/pushed-2.parquet", "data/b.parquet"}


def test_rows_of_deleted_versions_prevent_a_rollback_unless_left_behind(
    real_store: ObjectStore,
) -> None:
    switch_version(real_store, *TABLE, make_table(real_store))
    for number in range(3):
        stream(real_store, 2, f"data/b{number}.parquet", 8 + number)
    clean_up(manifest_of(real_store), Retention(retain_s=0, orphan_grace_s=0, keep_versions=1))
    with pytest.raises(SwitchRefused, match=r"is no longer known: .* without carry the rows stay"):
        roll_back(real_store, *TABLE)
    assert manifest_of(real_store).load().sealed is None
    roll_back(real_store, *TABLE, carry=False)
    assert paths(real_store) == {"data/a.parquet"}


def test_successive_rollbacks_go_back_one_version_each(real_store: ObjectStore) -> None:
    make_table(real_store)
    for version in (2, 3, 4):
        if version > 2:
            push(real_store, version)
        switch_version(real_store, *TABLE, version)
        stream(real_store, version, f"data/in-{version}.parquet", 10 * version)
    for back_to in (3, 2, 1):
        assert roll_back(real_store, *TABLE).table_version == back_to
    streamed = {f"data/in-{version}.parquet" for version in (2, 3, 4)}
    assert paths(real_store) == {"data/a.parquet"} | streamed
    switch_version(real_store, *TABLE, 3)
    assert rollback_target(real_store, *TABLE) == 1


def test_columns_added_before_a_rollback_stay(real_store: ObjectStore) -> None:
    """A rollback keeps the newest schema, as in Iceberg, and carries over the rows that have it."""
    switch_version(real_store, *TABLE, make_table(real_store))
    wider = Schema(schema_id=2, arrow="BBBB")
    commit_to(real_store, 2, wider)
    file_of(real_store, 2, "data/b.parquet")
    commit_to(real_store, 2, replace(add("data/b.parquet", 8), schema_id=2), applied(8))
    roll_back(real_store, *TABLE)
    state = manifest_of(real_store).load()
    assert state.current_schema == wider
    assert paths(real_store) == {"data/a.parquet", "data/b.parquet"}


def test_a_repeated_rollback_or_swap_is_done_once(real_store: ObjectStore) -> None:
    """A controller was killed before it could record that the move is done."""
    make_table(real_store)
    push(real_store, 3)
    for version in (2, 3):
        switch_version(real_store, *TABLE, version, push_id=f"push-{version - 1}")
    first = roll_back(real_store, *TABLE, 3, push_id="push-2")
    assert roll_back(real_store, *TABLE, 3, push_id="push-2") == first
    assert manifest_of(real_store).table_version == 2
    with pytest.raises(
        SwitchRefused, match="push push-2 was current by switch 2, and no longer is"
    ):
        switch_version(real_store, *TABLE, 3, push_id="push-2")
    assert manifest_of(real_store).load().sealed is None
    switch_version(real_store, *TABLE, 3)


# Interrupted at any step


# Every change of a switch or a rollback, interrupted before and after it.
KILLS = [(at, done) for at in range(1, 8) for done in (False, True)]


@pytest.mark.parametrize(("at", "done"), KILLS)
@pytest.mark.parametrize("finisher", ["same", "anybody"])
def test_an_interrupted_switch_or_rollback_is_finished_once(
    real_store: ObjectStore, at: int, done: bool, finisher: str
) -> None:
    version = make_table(real_store)
    since = manifest_of(real_store).head()

    def forth(store: ObjectStore) -> None:
        switch_version(store, *TABLE, version, push_id="push-1", since=since, previous=1)

    def back(store: ObjectStore) -> None:
        roll_back(store, *TABLE, push_id="push-1")

    for move, target in ((forth, 2), (back, 1)):
        left = 3 - target
        stream(real_store, left, f"data/in-{left}.parquet", 10 * left)
        try:
            move(KillingStore(real_store, at, done=done))
        except Killed:
            current = manifest_of(real_store)
            assert current.table_version in (1, 2)
            if finisher == "anybody" and current.load().sealed is not None:
                finish_switch(real_store, *TABLE)
            else:
                move_again(real_store, move, target)
        assert manifest_of(real_store).table_version == target
        assert finish_switch(real_store, *TABLE).table_version == target
    assert paths(real_store, 2) == {
        "data/pushed-2.parquet",
        "data/in-1.parquet",
        "data/in-2.parquet",
    }
    assert paths(real_store) == {"data/a.parquet", "data/in-1.parquet", "data/in-2.parquet"}
    assert writer_positions(real_store, 1) == writer_positions(real_store, 2)
    assert len(list(real_store.list(CURRENT))) == 2


def move_again(store: ObjectStore, move: Callable[[ObjectStore], None], target: int) -> None:
    """The same process, or its successor, repeats a move whose outcome it does not know."""
    if manifest_of(store).table_version != target:
        move(store)


def test_a_process_that_slept_through_a_switch_and_its_rollback_does_nothing(
    real_store: ObjectStore,
) -> None:
    """Paused before each of its changes, until the switch is complete and rolled back."""
    for at in range(1, 6):
        store = SleepingStore(real_store, at)
        table = ("ns", f"flights-{at}")
        definition = (*DEFINITION, add("data/a.parquet", 7), applied(7))
        commit(Manifest(real_store, *table, 1), None, Proposal(definition), ME)
        commit(Manifest(real_store, *table, 2), None, Proposal(DEFINITION), OTHER)

        def others(table: tuple[str, str] = table) -> None:
            switch_version(real_store, *table, 2, push_id="push")
            roll_back(real_store, *table)

        store.asleep = others
        with suppress(SwitchedMeanwhile):
            switch_version(store, *table, 2, push_id="push")
        manifest = Manifest(real_store, *table)
        assert manifest.table_version == 1, at
        state = manifest.load()
        assert set(state.files) == {"data/a.parquet"} and state.sealed is None, at
        assert len(list(real_store.list(f"ns/flights-{at}/_current/"))) == 2
        proposal = Proposal([add("data/b.parquet", 8), Applied("me", 1, 1, ("2026-11-21",), 8)])
        commit(manifest, None, proposal, ME)


class SleepingStore(KillingStore):
    """Runs a callback before its n-th change."""

    def __init__(self, inner: ObjectStore, at: int) -> None:
        super().__init__(inner, at, done=False)
        self.asleep: Callable[[], None] = lambda: None

    def _change(self, call: Callable[..., PutInfo], *arguments: Any) -> PutInfo:
        self._left -= 1
        if self._left == 0:
            self.asleep()
        return call(*arguments)


def test_two_pushes_at_once_make_one_switch_at_a_time(real_store: ObjectStore) -> None:
    make_table(real_store)
    push(real_store, 3)
    store = KillingStore(real_store, 2, done=True)
    with pytest.raises(Killed):
        switch_version(store, *TABLE, 2, push_id="push-1")
    with pytest.raises(VersionSealed, match="push-1"):
        switch_version(real_store, *TABLE, 3, push_id="push-2")
    assert finish_switch(real_store, *TABLE).push_id == "push-1"
    switch_version(real_store, *TABLE, 3, push_id="push-2")
    assert paths(real_store) == {"data/pushed-3.parquet"}
