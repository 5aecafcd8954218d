"""Claims, due snapshots, and the list of tables."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import pytest

from persist.manifest import (
    EMPTY,
    Manifest,
    Proposal,
    TableState,
    claim_epoch,
    commit,
    list_tables,
    snapshot_due,
    write_snapshot,
)
from persist.manifest.paths import snapshot_path
from persist.store import StoreUnavailable
from tests.persist.manifest.conftest import EVERY_STORE
from tests.persist.manifest.samples import DEFINITION, ME, grown, table
from tests.persist.manifest.stores import FaultyStore


def test_each_claim_is_higher_than_all_before(store: FaultyStore) -> None:
    assert claim_epoch(store, "pod-0", 1, {"incarnation": "a"}) == 1
    assert claim_epoch(store, "pod-0", 1, {"incarnation": "b"}) == 2
    assert claim_epoch(store, "pod-0", 7, {}) == 7
    assert claim_epoch(store, "pod-0", 3, {}) == 8
    assert claim_epoch(store, "pod-00", 0, {}) == 1
    assert store.get("_ingesters/pod-0/00000000000000000002.claim") == b'{"incarnation":"b"}'


@EVERY_STORE
def test_claims_at_the_same_time_differ(store: FaultyStore) -> None:
    with ThreadPoolExecutor(8) as pool:
        epochs = list(pool.map(lambda _: claim_epoch(store, "pod-0", 1, {}), range(8)))
    assert sorted(set(epochs)) == sorted(epochs)


def test_a_claim_whose_answer_is_lost_is_never_given_out_again(store: FaultyStore) -> None:
    store.plan("after", "create")
    with pytest.raises(StoreUnavailable):
        claim_epoch(store, "pod-0", 1, {})
    assert claim_epoch(store, "pod-0", 1, {}) == 2


@pytest.mark.parametrize("name", ["", "../x", "a/b", "_x"])
def test_an_invalid_id_cannot_claim(store: FaultyStore, name: str) -> None:
    with pytest.raises(ValueError, match="ingester id"):
        claim_epoch(store, name, 1, {})


@EVERY_STORE
def test_a_table_is_listed_once_a_version_is_committed(store: FaultyStore) -> None:
    assert list_tables(store) == []
    tables = [("a", "t"), ("a", "t-x"), ("a", "t.x"), ("a", "t0"), ("a-b", "t"), ("b", "_u"[1:])]
    for namespace, name in tables:
        manifest = Manifest(store, namespace, name)
        commit(manifest, None, Proposal(DEFINITION), ME)
        store.put(manifest.object_path("data/time_day=2026-11-21/f.parquet"), b"")
    claim_epoch(store, "pod-0", 1, {})
    for stray in ("stray", "a/stray", "a/_hidden/x", "a/t/stray", "b/empty/v1/data/f", "c d/t/x"):
        store.put(stray, b"")
    store.put("b/begun/v1/_manifest/00000000000000000001_ab.changelog", b"")
    assert sorted(list_tables(store)) == sorted(tables)


def test_a_table_built_as_a_new_version_is_listed_by_it(store: FaultyStore) -> None:
    table(Manifest(store, "ns", "t"))
    store.put("ns/t/_current/00000000000000000001", b'{"table_version": 2}')
    assert list_tables(store) == []
    table(Manifest(store, "ns", "t"))
    assert list_tables(store) == [("ns", "t")]


def _due_at(manifest: Manifest, versions: int) -> list[int]:
    """The versions of a growing table in which a snapshot was due; each is written."""
    due = []
    state: TableState = table(manifest)
    while state.version < versions:
        state = grown(manifest, state, 1)
        if snapshot_due(state):
            due.append(state.version)
            state = write_snapshot(manifest, state)
            assert not snapshot_due(state)
    return due


def test_snapshots_become_rarer_as_the_table_grows(manifest: Manifest) -> None:
    due = _due_at(manifest, 80)
    distances = [later - before for before, later in pairwise(due)]
    assert distances == sorted(distances)
    assert distances[0] >= 10
    assert distances[-1] > distances[0]
    assert Manifest(manifest.store, "ns", "flights").load().version == 80


def test_a_snapshot_is_due_after_two_hundred_versions_at_the_latest(manifest: Manifest) -> None:
    state = replace(table(manifest), lineage=tuple((v, "u") for v in range(1, 201)))
    assert not snapshot_due(state, 0)
    state = replace(state, lineage=(*state.lineage, (201, "u")))
    assert snapshot_due(state, 0)


def test_a_snapshot_written_late_shortens_what_comes_after(manifest: Manifest) -> None:
    old = table(manifest, 4)
    newer = grown(manifest, old, 3)
    write_snapshot(manifest, old)
    assert manifest.store.exists(snapshot_path(manifest.folder, 4, old.uid)) is not None
    told = newer.after_snapshot(old.version, old.uid)
    assert [version for version, _ in told.lineage] == [4, 5, 6, 7]
    assert 0 < told.changelog_bytes < newer.changelog_bytes
    assert newer.after_snapshot(4, "another") is newer
    after = grown(manifest, told, 1)
    assert Manifest(manifest.store, "ns", "flights").load().lineage == after.lineage


def test_an_uncommitted_table_has_no_snapshot(manifest: Manifest) -> None:
    with pytest.raises(ValueError, match="without a version"):
        write_snapshot(manifest, EMPTY)
