"""A commit with a lost, late or wrong answer is retried, and is committed once."""

from __future__ import annotations

import pytest

from persist.manifest import CommitUnclear, Manifest, Proposal
from persist.manifest.paths import commit_path
from persist.store import StoreUnavailable
from tests.persist.manifest.conftest import EVERY_STORE
from tests.persist.manifest.samples import DEFINITION, OTHER, fresh, grown, persist, put_in, table
from tests.persist.manifest.stores import FaultyStore


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_lost_answer_is_resolved_within_one_call(
    manifest: Manifest, store: FaultyStore, when: str, times: int
) -> None:
    state = table(manifest, 2)
    store.plan(when, "create", times=times)
    after = put_in(manifest, state, Proposal(persist(2)))
    assert (after.version, after.file_count) == (3, 2)
    assert fresh(manifest).load() == after


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("overtaken", [False, True])
def test_an_unclear_commit_tried_again_is_committed_once(
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
        found = fresh(manifest).load()
        assert found.file_count == (4 if overtaken else 2)
        assert found.version == (5 if overtaken else 3)


@EVERY_STORE
def test_a_first_request_that_arrives_late_does_no_harm(
    manifest: Manifest, store: FaultyStore
) -> None:
    """The repeated commit has the same bytes, so it does not matter which of the two is kept."""
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
    assert fresh(manifest).load().file_count == 2


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
def test_a_proposal_can_be_retried_after_the_store_was_unreachable(
    manifest: Manifest, store: FaultyStore, call: str
) -> None:
    state = table(manifest, 2)
    proposal = Proposal(persist(2))
    store.plan("before", call, times=9)
    with pytest.raises((StoreUnavailable, CommitUnclear)):
        put_in(manifest, state, proposal)
    store.recover()
    assert put_in(manifest, state, proposal).file_count == 2
    assert fresh(manifest).load().file_count == 2


@EVERY_STORE
def test_a_writer_paused_during_garbage_collection_distrusts_its_commit(
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
    assert fresh(manifest).load() == after


def test_a_writer_that_knew_no_table_does_not_create_it_again(
    manifest: Manifest, store: FaultyStore
) -> None:
    def live_and_clean_up() -> None:
        table(manifest, 8)
        for version in range(1, 6):
            store.delete(commit_path(manifest.folder, version))

    store.meanwhile = live_and_clean_up
    state = put_in(manifest, None, Proposal(DEFINITION), OTHER)
    assert state.version == 8
    assert fresh(manifest).load() == state
