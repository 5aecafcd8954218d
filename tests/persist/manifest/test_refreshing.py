"""A reader with a known state or version gets the newest state with few requests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from persist.manifest import Manifest, Proposal, WriterIdentity, commit, write_snapshot
from persist.manifest.paths import commit_path
from tests.persist.manifest.conftest import EVERY_STORE
from tests.persist.manifest.samples import (
    ME,
    fresh,
    grown,
    grown_in_memory,
    history,
    persist,
    table,
)
from tests.persist.manifest.stores import FaultyStore


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


def test_a_state_that_was_never_committed_is_replaced(manifest: Manifest) -> None:
    states = history(manifest, 3)
    losing = replace(grown_in_memory(states[1]), uid="lost")
    assert manifest.refresh(losing) == states[2]
    assert manifest.load(2, known=losing) == states[1]


@EVERY_STORE
def test_a_reader_overtaken_by_garbage_collection_finds_the_head(
    manifest: Manifest, store: FaultyStore
) -> None:
    states = history(manifest, 9)
    write_snapshot(manifest, states[6])
    for version in range(1, 6):
        store.delete(commit_path(manifest.folder, version))
    assert manifest.refresh(states[1]) == states[8]
    assert manifest.refresh(states[0]) == states[8]


def test_followers_learn_of_a_snapshot_made_meanwhile(manifest: Manifest) -> None:
    known = table(manifest, 3)
    state = write_snapshot(manifest, grown(manifest, known, 2))
    state = grown(manifest, state, 1)
    followed = manifest.refresh(known)
    assert followed == state
    assert followed.lineage == state.lineage
    assert followed.changelog_bytes == state.changelog_bytes > 0


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
    # Twenty lookups ahead in case of a gap, which a local store answers at once.
    assert sum(store.calls.values()) <= 20 + 21
    store.calls.clear()
    assert reader.head() == 100
    assert sum(store.calls.values()) <= 3 + 21
    assert store.calls["list"] <= 2


def test_a_hint_below_the_floor_does_no_harm(manifest: Manifest, store: FaultyStore) -> None:
    for version in (7, 8, 9):
        store.create(commit_path(manifest.folder, version), b"{}")
    for hint in (3, 12):
        reader = fresh(manifest)
        reader.note(hint)
        assert reader.head() == 9


@EVERY_STORE
def test_readers_and_a_writer_agree_on_counters(manifest: Manifest) -> None:
    other = WriterIdentity("other", "run", 3)
    state = grown(manifest, table(manifest, 3), 2, writer=other)
    state = commit(manifest, state, Proposal(persist(9)), ME)
    found = fresh(manifest).load()
    assert (found.rows, found.bytes, found.file_count) == (50, 5000, 5)
    assert (state.rows, state.bytes, state.file_count) == (50, 5000, 5)
    assert found.changelog_bytes == state.changelog_bytes
