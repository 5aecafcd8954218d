"""Writing versions while the store becomes unreachable, at each step and over many versions."""

from __future__ import annotations

from contextlib import suppress

import pytest

from persist.manifest import CommitUnclear, Manifest, Proposal, TableState
from persist.store import StoreUnavailable
from tests.persist.manifest.aged_table import AgedTable, upload
from tests.persist.manifest.conftest import EVERY_STORE
from tests.persist.manifest.samples import OTHER, applied, fresh, grown, persist, put_in, table
from tests.persist.manifest.stores import ClockedStore, FaultyStore

DIVERGED = 20


def persist_one(manifest: Manifest, state: TableState, pending: list[Proposal]) -> TableState:
    """Upload and commit the next file as a daemon does; an unclear proposal is kept for a retry."""
    seq = max(state.applied.values(), default=0) + 1
    if not pending:
        pending.append(Proposal([upload(manifest, f"p{seq}", seq), applied(seq)]))
    return put_in(manifest, state, pending[0])


@pytest.mark.parametrize(
    ("when", "call", "path"),
    [
        ("before", "put", ".parquet"),
        ("after", "put", ".parquet"),
        ("before", "put", ".changelog"),
        ("after", "put", ".changelog"),
        ("before", "create", ".commit"),
        ("after", "create", ".commit"),
        ("before", "get", ".commit"),
    ],
)
@pytest.mark.parametrize("times", [1, 5])
def test_the_store_becomes_unreachable_at_a_step_and_the_version_is_made_once(
    aged: AgedTable, when: str, call: str, path: str, times: int
) -> None:
    """Before the data file, before the changelog, before the commit, after the commit."""
    aged.live(3)
    aged.store.plan(when, call, path, times)
    state, pending, failures = aged.head, list[Proposal](), 0
    while state is aged.head:
        try:
            state = persist_one(aged.manifest, state, pending)
        except (StoreUnavailable, CommitUnclear):
            failures += 1
            assert failures <= 6
    aged.store.recover()
    assert failures or call != "put"
    assert (state.version, state.file_count) == (4, aged.head.file_count + 1)
    assert fresh(aged.manifest).load() == state
    aged.states.append(state)
    aged.check_kept(1)


@EVERY_STORE
def test_a_process_that_ends_at_any_step_leaves_a_version_or_none(aged: AgedTable) -> None:
    """Another process continues from the content of the store, and covers committed rows."""
    aged.live(3)
    before = aged.head
    for step in range(20):
        aged.store.fail_at, aged.store.failed = step, False
        with suppress(StoreUnavailable, CommitUnclear):
            persist_one(aged.manifest, before, [])
        aged.store.fail_at = None
        found = fresh(aged.manifest).load()
        if found != before:
            assert (found.version, found.file_count) == (4, before.file_count + 1)
            break
    else:
        pytest.fail("no step made the version")
    after = persist_one(fresh(aged.manifest), before, [])
    assert after == found


@EVERY_STORE
def test_two_writers_diverge_and_one_of_them_commits_later(
    manifest: Manifest, store: FaultyStore
) -> None:
    """Twenty commits of one writer get no answer while the other writes twenty versions."""
    base = table(manifest, 2)
    cut_off = ClockedStore(store)
    theirs = Manifest(cut_off, "ns", "flights")
    cut_off.plan("before", "create", ".commit", times=3 * DIVERGED)
    waiting = []
    for seq in range(1, DIVERGED + 1):
        waiting.append(Proposal(persist(seq, writer=OTHER)))
        with pytest.raises(CommitUnclear):
            put_in(theirs, base, waiting[-1], OTHER)
    mine = grown(manifest, base, DIVERGED)
    assert mine.version == 2 + DIVERGED
    state = base
    for proposal in waiting:
        state = put_in(theirs, state, proposal, OTHER)
    assert state.version == 2 + 2 * DIVERGED
    assert state.file_count == mine.file_count + DIVERGED
    assert fresh(manifest).load() == state
    changes = fresh(manifest).changes(2, state.version)
    writers = [change.writer.ingester_id for change in changes]
    assert writers == ["me"] * DIVERGED + ["other"] * DIVERGED
