"""One commit: each proposal goes in once, whatever the store answers and whoever is faster."""

from __future__ import annotations

import json

import pytest

from persist.manifest import (
    ActionRefused,
    Add,
    CommitUnclear,
    EpochComplete,
    Fenced,
    Manifest,
    PartlyCovered,
    Properties,
    Proposal,
    ProposalConflict,
    Remove,
    RewriteVoid,
    Schema,
    TableNotFound,
    TableState,
    Txn,
    Writer,
    WriterIdentity,
    commit,
)
from persist.manifest.names import commit_path
from persist.store import StoreUnavailable
from tests.manifest.samples import (
    DAY,
    DEFINITION,
    IMPATIENT,
    ME,
    add,
    applied,
    grown,
    persist,
    table,
)
from tests.manifest.stores import FaultyStore

OTHER = WriterIdentity("other", "run", 5)


def put_in(
    manifest: Manifest, base: TableState | None, proposal: Proposal, who: WriterIdentity = ME
) -> TableState:
    """Commit without waiting between attempts."""
    return commit(manifest, base, proposal, who, patience=IMPATIENT)


def fresh(manifest: Manifest) -> TableState:
    """What a reader that knows nothing finds."""
    return Manifest(manifest.store, manifest.namespace, manifest.table).load()


def test_a_commit_costs_one_put_one_create_and_one_look_at_the_parent(
    manifest: Manifest, store: FaultyStore
) -> None:
    state = table(manifest, 4)
    store.calls.clear()
    after = put_in(manifest, state, Proposal(persist(4)))
    assert dict(store.calls) == {"put": 1, "create": 1, "get": 1}
    assert after == fresh(manifest)
    assert after.version == 5


def test_the_commit_file_names_parent_and_writer(manifest: Manifest, store: FaultyStore) -> None:
    state = table(manifest, 2)
    first, second = (json.loads(store.get(commit_path(manifest.folder, v))) for v in (1, 2))
    assert first["parent"] is None
    assert (second["parent"], second["uid"]) == (first["uid"], state.uid)
    assert second["writer"] == {"ingester_id": "me", "incarnation": "first", "epoch": 1}


def test_a_commit_that_knows_nothing_looks_first(manifest: Manifest) -> None:
    table(manifest, 3)
    assert put_in(manifest, None, Proposal(persist(7))).version == 4


def test_the_loser_of_a_race_goes_on_top_of_the_winner(
    manifest: Manifest, store: FaultyStore
) -> None:
    state = table(manifest, 2)
    store.meanwhile = lambda: grown(manifest, state, 2, writer=OTHER)
    after = put_in(manifest, state, Proposal(persist(2)))
    assert (after.version, after.file_count) == (5, 4)
    assert fresh(manifest) == after


def test_a_rebase_of_ones_own_is_told_each_state(manifest: Manifest, store: FaultyStore) -> None:
    state = table(manifest, 2)
    store.meanwhile = lambda: grown(manifest, state, 1, writer=OTHER)
    told = []

    def note(newer: TableState, actions: tuple[object, ...]) -> tuple[object, ...]:
        told.append(newer.version)
        return actions

    commit(manifest, state, Proposal(persist(2)), ME, note)  # type: ignore[arg-type]
    assert told == [2, 3]


def test_two_that_create_the_same_table_agree(manifest: Manifest, store: FaultyStore) -> None:
    store.meanwhile = lambda: table(manifest)
    state = put_in(manifest, None, Proposal(DEFINITION), OTHER)
    assert (state.version, fresh(manifest)) == (1, state)


def test_two_that_create_different_tables_do_not(manifest: Manifest, store: FaultyStore) -> None:
    store.meanwhile = lambda: table(manifest)
    with pytest.raises(ProposalConflict, match="schema 1") as lost:
        put_in(manifest, None, Proposal([Schema(1, "WIDER"), *DEFINITION[1:]]), OTHER)
    assert lost.value.state.current_schema == DEFINITION[0]
    merged = Proposal([Schema(2, "WIDER")])
    assert put_in(manifest, lost.value.state, merged, OTHER).version == 2


def test_a_schema_made_for_an_older_one_conflicts(manifest: Manifest, store: FaultyStore) -> None:
    state = table(manifest)
    store.meanwhile = lambda: put_in(manifest, state, Proposal([Schema(2, "X")]), OTHER)
    with pytest.raises(ProposalConflict, match="schema 2"):
        put_in(manifest, state, Proposal([Schema(2, "Y")]))
    # The same one, or the next, is fine; so is one made before an unrelated commit.
    newest = manifest.refresh(state)
    assert put_in(manifest, newest, Proposal([Schema(2, "X")])) is newest
    store.meanwhile = lambda: grown(manifest, newest, 1, writer=OTHER)
    assert put_in(manifest, newest, Proposal([Schema(3, "Z")])).version == 4
    with pytest.raises(ProposalConflict, match="properties"):
        put_in(manifest, None, Proposal([Properties({"primary_key": ["id"]})]))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_lost_answer_is_found_out_within_one_call(
    manifest: Manifest, store: FaultyStore, when: str, times: int
) -> None:
    state = table(manifest, 2)
    store.plan(when, "create", times=times)
    after = put_in(manifest, state, Proposal(persist(2)))
    assert (after.version, after.file_count) == (3, 2)
    assert fresh(manifest) == after


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("overtaken", [False, True])
def test_an_unclear_commit_tried_again_goes_in_once(
    manifest: Manifest, store: FaultyStore, when: str, overtaken: bool
) -> None:
    state = table(manifest, 2)
    proposal = Proposal(persist(2))
    store.plan(when, "create", times=3)
    with pytest.raises(CommitUnclear) as unclear:
        put_in(manifest, state, proposal)
    assert proposal.pending == (3, unclear.value.uid)
    if overtaken:
        grown(manifest, manifest.refresh(state), 2, writer=OTHER)
    store.recover()
    for _ in range(2):  # and once more after it succeeded
        put_in(manifest, state, proposal)
        found = fresh(manifest)
        assert found.file_count == (4 if overtaken else 2)
        assert found.version == (5 if overtaken else 3)


def test_a_first_request_that_arrives_late_does_no_harm(
    manifest: Manifest, store: FaultyStore
) -> None:
    """Made again it is the same to the byte, so it does not matter which of the two is kept."""
    state = table(manifest, 2)
    sent: list[bytes] = []

    def keep(path: str, data: bytes) -> None:
        sent.append(data)
        raise StoreUnavailable("no answer yet")

    store.create, real = keep, store.create  # type: ignore[method-assign, assignment]
    proposal = Proposal(persist(2))
    with pytest.raises(CommitUnclear):
        put_in(manifest, state, proposal)
    store.create = real  # type: ignore[method-assign]
    assert len(set(sent)) == 1
    store.create(commit_path(manifest.folder, 3), sent[0])
    assert put_in(manifest, state, proposal).version == 3
    assert fresh(manifest).file_count == 2


def test_an_unclear_commit_whose_read_back_fails_stays_unclear(
    manifest: Manifest, store: FaultyStore
) -> None:
    state = table(manifest, 2)
    grown(manifest, state, 1, writer=OTHER)
    store.plan("before", "get", "00003.commit", times=3)
    proposal = Proposal(persist(2))
    with pytest.raises(CommitUnclear):
        put_in(manifest, state, proposal)
    assert put_in(manifest, state, proposal).file_count == 3


@pytest.mark.parametrize("call", ["put", "get"])
def test_a_store_that_is_away_leaves_a_proposal_that_can_be_tried_again(
    manifest: Manifest, store: FaultyStore, call: str
) -> None:
    state = table(manifest, 2)
    proposal = Proposal(persist(2))
    store.plan("before", call, times=9)
    with pytest.raises((StoreUnavailable, CommitUnclear)):
        put_in(manifest, state, proposal)
    store.recover()
    assert put_in(manifest, state, proposal).file_count == 2
    assert fresh(manifest).file_count == 2


def test_a_writer_that_slept_through_clean_up_does_not_believe_its_commit(
    manifest: Manifest, store: FaultyStore
) -> None:
    state = table(manifest, 2)
    newest = grown(manifest, state, 6, writer=OTHER)

    def clean_up() -> None:
        for version in range(1, 6):
            store.delete(commit_path(manifest.folder, version))

    store.meanwhile = clean_up
    after = put_in(manifest, state, Proposal(persist(2)))
    assert (after.version, after.file_count) == (9, newest.file_count + 1)
    assert fresh(manifest) == after


def test_a_writer_that_believed_there_was_no_table_does_not_start_it_anew(
    manifest: Manifest, store: FaultyStore
) -> None:
    def live_and_clean_up() -> None:
        table(manifest, 8)
        for version in range(1, 6):
            store.delete(commit_path(manifest.folder, version))

    store.meanwhile = live_and_clean_up
    state = put_in(manifest, None, Proposal(DEFINITION), OTHER)
    assert state.version == 8
    assert fresh(manifest) == state


def test_what_is_covered_falls_out_and_no_version_is_made(manifest: Manifest) -> None:
    state = table(manifest, 4)
    again = [add("data/other-name.parquet", 1, 3), applied(3)]
    assert put_in(manifest, state, Proposal(again)) is state
    part = Proposal([add("data/old.parquet", 3), add("data/new.parquet", 4), applied(4)])
    after = put_in(manifest, state, part)
    assert "data/new.parquet" in after.files
    assert "data/old.parquet" not in after.files


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
    assert fresh(manifest) == state


def test_operations_of_another_epoch_or_partition_are_not_covered(manifest: Manifest) -> None:
    state = table(manifest, 4)
    later = WriterIdentity("me", "second", 2)
    state = put_in(manifest, state, Proposal(persist(2, writer=later)), later)
    elsewhere = [add("data/e.parquet", 2, values=("x",)), applied(2, values=("x",))]
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
    assert list(fresh(manifest).files) == ["data/theirs.parquet"]


def test_a_rewrite_that_is_in_already_is_not_void(manifest: Manifest) -> None:
    """The caller lost its proposal object, but not its file's name."""
    state = table(manifest, 2)
    actions = [Remove("data/me-1-1.parquet", "compacted"), add("data/r.parquet", 1, kind="rewrite")]
    state = put_in(manifest, state, Proposal(actions))
    assert put_in(manifest, state, Proposal(actions)) is state


def test_a_foreign_transaction_goes_in_once(manifest: Manifest) -> None:
    state = table(manifest)

    def push(version: int, path: str) -> Proposal:
        return Proposal([add(path, kind="push"), Txn("spark-job", version)])

    state = put_in(manifest, state, push(1, "data/p1.parquet"))
    assert put_in(manifest, state, push(1, "data/p1-again.parquet")) is state
    assert put_in(manifest, state, push(2, "data/p2.parquet")).file_count == 2


def test_an_older_epoch_is_fenced_by_its_next_commit(manifest: Manifest) -> None:
    state = table(manifest, 2)
    newer = WriterIdentity("me", "second", 2)
    put_in(manifest, state, Proposal([Writer("me", "second", 2, "open")]), newer)
    with pytest.raises(Fenced, match="epoch 1 was replaced by epoch 2") as fenced:
        put_in(manifest, state, Proposal(persist(2)))
    assert fenced.value.by_incarnation == "second"
    twin = WriterIdentity("me", "twin", 2)
    with pytest.raises(Fenced):
        put_in(manifest, state, Proposal(persist(2)), twin)
    assert put_in(manifest, state, Proposal(persist(2)), newer).version == 4
    assert put_in(manifest, state, Proposal(persist(1, writer=OTHER)), OTHER).version == 5


def test_a_fenced_writer_still_learns_that_its_last_commit_went_in(
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
    put_in(manifest, None, Proposal([Writer("me", "second", 2, "open")]), newer)
    assert put_in(manifest, state, proposal).version == 3
    with pytest.raises(Fenced):
        put_in(manifest, state, Proposal(persist(3)))


def test_nonsense_is_refused_before_anything_is_written(
    manifest: Manifest, store: FaultyStore
) -> None:
    state = table(manifest, 2)
    store.calls.clear()
    twice = Proposal([add("data/x.parquet", 5), add("data/x.parquet", 6)])
    with pytest.raises(ActionRefused):
        put_in(manifest, state, twice)
    wrong = add("data/y.parquet", 5)
    broken = Add(**{f: getattr(wrong, f) for f in wrong.__struct_fields__} | {"rows": "many"})
    with pytest.raises(ActionRefused, match="wrong type"):
        put_in(manifest, state, Proposal([broken]))
    assert not store.calls
    with pytest.raises(ValueError, match="at least one"):
        Proposal([])


def test_a_table_that_is_not_there_and_nothing_to_commit_is_not_found(manifest: Manifest) -> None:
    with pytest.raises(TableNotFound):
        commit(manifest, None, Proposal(DEFINITION), ME, lambda state, actions: ())
