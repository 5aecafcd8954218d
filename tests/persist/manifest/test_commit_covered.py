"""Committed parts are dropped; void rewrites and writers of old epochs are refused."""

from __future__ import annotations

import pytest

from persist.manifest import (
    Action,
    CommitUnclear,
    EpochComplete,
    Fenced,
    Manifest,
    PartlyCovered,
    Proposal,
    Remove,
    RewriteVoid,
    Txn,
    WriterAction,
    WriterIdentity,
)
from tests.persist.manifest.samples import DAY, OTHER, add, applied, fresh, persist, put_in, table
from tests.persist.manifest.stores import FaultyStore


def test_covered_actions_are_dropped_and_no_version_is_made(manifest: Manifest) -> None:
    state = table(manifest, 4)
    again: list[Action] = [add("data/other-name.parquet", 1, 3), applied(3)]
    assert put_in(manifest, state, Proposal(again)) is state
    part = Proposal([add("data/old.parquet", 3), add("data/new.parquet", 4), applied(4)])
    after = put_in(manifest, state, part)
    assert "data/new.parquet" in after.files
    assert "data/old.parquet" not in after.files


@pytest.mark.parametrize("empty", [False, True], ids=["with a file", "nothing left of it"])
def test_files_that_a_covered_flush_would_replace_stay(manifest: Manifest, empty: bool) -> None:
    """This includes a keyed flush: its removes alone would delete rows."""
    state = table(manifest, 3)
    there = sorted(state.files)
    covered: list[Action] = [Remove(there[0], "replaced"), applied(2)]
    covered += [] if empty else [add("data/covered.parquet", 2)]
    elsewhere: list[Action] = [add("data/e.parquet", 2, values=("x",)), applied(2, values=("x",))]
    after = put_in(manifest, state, Proposal([*covered, *elsewhere]))
    assert set(after.files) == {*there, "data/e.parquet"}
    assert put_in(manifest, after, Proposal(covered)) is after


def test_operations_of_a_complete_epoch_are_covered(manifest: Manifest) -> None:
    state = put_in(manifest, table(manifest, 3), Proposal([EpochComplete("me", 1)]))
    assert put_in(manifest, state, Proposal(persist(99))) is state


def test_a_partly_covered_file_has_to_be_encoded_again(manifest: Manifest) -> None:
    state = table(manifest, 4)
    both = add("data/both.parquet", 3, 5)
    with pytest.raises(PartlyCovered) as refused:
        put_in(manifest, state, Proposal([both, applied(5)]))
    assert refused.value.adds == (both,)
    assert refused.value.covered == {("me", 1, 1, DAY): 3}
    assert fresh(manifest).load() == state


def test_operations_of_another_epoch_or_partition_are_not_covered(manifest: Manifest) -> None:
    state = table(manifest, 4)
    later = WriterIdentity("me", "second", 2)
    state = put_in(manifest, state, Proposal(persist(2, writer=later)), later)
    elsewhere: list[Action] = [add("data/e.parquet", 2, values=("x",)), applied(2, values=("x",))]
    assert put_in(manifest, state, Proposal(elsewhere), later).file_count == 5


def test_a_rewrite_of_files_that_are_gone_is_void(manifest: Manifest, store: FaultyStore) -> None:
    state = table(manifest, 3)
    old = sorted(state.files)

    def rewrite(path: str) -> Proposal:
        removes = [Remove(gone, "compacted") for gone in old]
        return Proposal([*removes, add(path, 1, 2, kind="rewrite")])

    store.meanwhile = lambda: put_in(manifest, state, rewrite("data/theirs.parquet"), OTHER)
    with pytest.raises(RewriteVoid) as refused:
        put_in(manifest, state, rewrite("data/mine.parquet"))
    assert refused.value.paths == tuple(old)
    assert list(fresh(manifest).load().files) == ["data/theirs.parquet"]


def test_a_committed_rewrite_is_not_void(manifest: Manifest) -> None:
    """The caller lost its proposal object, but not its file's name."""
    state = table(manifest, 2)
    actions: list[Action] = [
        Remove("data/me-1-1.parquet", "compacted"),
        add("data/r.parquet", 1, kind="rewrite"),
    ]
    state = put_in(manifest, state, Proposal(actions))
    assert put_in(manifest, state, Proposal(actions)) is state


def test_a_foreign_transaction_is_committed_once(manifest: Manifest) -> None:
    state = table(manifest)

    def push(version: int, path: str) -> Proposal:
        return Proposal([add(path, kind="push"), Txn("spark-job", version)])

    state = put_in(manifest, state, push(1, "data/p1.parquet"))
    assert put_in(manifest, state, push(1, "data/p1-again.parquet")) is state
    assert put_in(manifest, state, push(2, "data/p2.parquet")).file_count == 2


def test_an_older_epoch_is_fenced_by_its_next_commit(manifest: Manifest) -> None:
    state = table(manifest, 2)
    newer = WriterIdentity("me", "second", 2)
    put_in(manifest, state, Proposal([WriterAction("me", "second", 2, "open")]), newer)
    with pytest.raises(Fenced, match="epoch 1 was replaced by epoch 2") as fenced:
        put_in(manifest, state, Proposal(persist(2)))
    assert fenced.value.by_incarnation == "second"
    twin = WriterIdentity("me", "twin", 2)
    with pytest.raises(Fenced):
        put_in(manifest, state, Proposal(persist(2)), twin)
    assert put_in(manifest, state, Proposal(persist(2)), newer).version == 4
    assert put_in(manifest, state, Proposal(persist(1, writer=OTHER)), OTHER).version == 5


def test_a_fenced_writer_still_learns_that_its_last_commit_succeeded(
    manifest: Manifest, store: FaultyStore
) -> None:
    state = table(manifest, 2)
    proposal = Proposal(persist(2))
    store.plan("after", "create", times=1)
    store.plan("before", "get", "00003.commit", times=3)
    with pytest.raises(CommitUnclear):
        put_in(manifest, state, proposal)
    store.recover()
    newer = WriterIdentity("me", "second", 2)
    put_in(manifest, None, Proposal([WriterAction("me", "second", 2, "open")]), newer)
    assert put_in(manifest, state, proposal).version == 3
    with pytest.raises(Fenced):
        put_in(manifest, state, Proposal(persist(3)))
