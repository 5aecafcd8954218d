"""Each proposal is committed once, on top of faster writers."""

from __future__ import annotations

import json

import pytest

from persist.manifest import (
    TRANSFORMERS,
    ActionRefused,
    Add,
    Manifest,
    Properties,
    Proposal,
    ProposalConflict,
    Schema,
    TableNotFound,
    TableState,
    commit,
)
from persist.manifest.paths import commit_path
from tests.persist.manifest.conftest import EVERY_STORE
from tests.persist.manifest.samples import (
    DEFINITION,
    ME,
    OTHER,
    add,
    fresh,
    grown,
    persist,
    put_in,
    table,
)
from tests.persist.manifest.stores import FaultyStore


@EVERY_STORE
def test_a_commit_costs_one_put_one_create_and_one_read_of_the_parent(
    manifest: Manifest, store: FaultyStore
) -> None:
    state = table(manifest, 4)
    store.calls.clear()
    after = put_in(manifest, state, Proposal(persist(4)))
    assert dict(store.calls) == {"put": 1, "create": 1, "get": 1}
    assert after == fresh(manifest).load()
    assert after.version == 5


def test_the_commit_file_names_parent_and_writer(manifest: Manifest, store: FaultyStore) -> None:
    state = table(manifest, 2)
    first, second = (json.loads(store.get(commit_path(manifest.folder, v))) for v in (1, 2))
    assert first["parent"] is None
    assert (second["parent"], second["uid"]) == (first["uid"], state.uid)
    assert second["writer"] == {"ingester_id": "me", "incarnation": "first", "epoch": 1}


def test_a_commit_without_a_base_reads_first(manifest: Manifest) -> None:
    table(manifest, 3)
    assert put_in(manifest, None, Proposal(persist(7))).version == 4


@EVERY_STORE
def test_the_loser_of_a_race_commits_on_top_of_the_winner(
    manifest: Manifest, store: FaultyStore
) -> None:
    state = table(manifest, 2)
    store.meanwhile = lambda: grown(manifest, state, 2, writer=OTHER)
    after = put_in(manifest, state, Proposal(persist(2)))
    assert (after.version, after.file_count) == (5, 4)
    assert fresh(manifest).load() == after


def test_a_custom_rebase_is_called_with_each_state(manifest: Manifest, store: FaultyStore) -> None:
    state = table(manifest, 2)
    store.meanwhile = lambda: grown(manifest, state, 1, writer=OTHER)
    told = []

    def note(newer: TableState, actions: tuple[object, ...]) -> tuple[object, ...]:
        told.append(newer.version)
        return actions

    commit(manifest, state, Proposal(persist(2)), ME, note)  # type: ignore[arg-type]
    assert told == [2, 3]


@EVERY_STORE
def test_two_creators_of_the_same_table_agree(manifest: Manifest, store: FaultyStore) -> None:
    store.meanwhile = lambda: table(manifest)
    state = put_in(manifest, None, Proposal(DEFINITION), OTHER)
    assert (state.version, fresh(manifest).load()) == (1, state)


def test_two_creators_of_different_definitions_conflict(
    manifest: Manifest, store: FaultyStore
) -> None:
    store.meanwhile = lambda: table(manifest)
    with pytest.raises(ProposalConflict, match="schema 1") as lost:
        put_in(manifest, None, Proposal([Schema(1, "WIDER"), *DEFINITION[1:]]), OTHER)
    assert lost.value.state.current_schema == DEFINITION[0]
    merged = Proposal([Schema(2, "WIDER")])
    assert put_in(manifest, lost.value.state, merged, OTHER).version == 2


def test_a_schema_derived_from_an_older_one_conflicts(
    manifest: Manifest, store: FaultyStore
) -> None:
    state = table(manifest)
    store.meanwhile = lambda: put_in(manifest, state, Proposal([Schema(2, "X")]), OTHER)
    with pytest.raises(ProposalConflict, match="schema 2"):
        put_in(manifest, state, Proposal([Schema(2, "Y")]))
    # The same schema or the next one is fine, and so is one from before an unrelated commit.
    newest = manifest.refresh(state)
    assert put_in(manifest, newest, Proposal([Schema(2, "X")])) is newest
    store.meanwhile = lambda: grown(manifest, newest, 1, writer=OTHER)
    assert put_in(manifest, newest, Proposal([Schema(3, "Z")])).version == 4
    with pytest.raises(ProposalConflict, match="properties"):
        put_in(manifest, None, Proposal([Properties({"primary_key": ["id"]})]))


def test_only_transformers_of_an_existing_table_may_change(manifest: Manifest) -> None:
    state = table(manifest)
    had = dict(state.properties)
    used = {**had, TRANSFORMERS: [{"class": "m:C", "version": "1", "previous": None}]}
    state = put_in(manifest, state, Proposal([Properties(used)]))
    assert state.properties == used
    # A writer that creates the table without them finds that another one has created it.
    with pytest.raises(ProposalConflict, match="properties") as lost:
        put_in(manifest, None, Proposal(DEFINITION), OTHER)
    assert lost.value.state.properties == used
    assert put_in(manifest, state, Proposal([Properties(had)])).properties == had
    with pytest.raises(ProposalConflict, match="properties"):
        put_in(manifest, None, Proposal([Properties({**used, "primary_key": ["id"]})]))


def test_inconsistent_actions_are_refused_before_anything_is_written(
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


def test_a_missing_table_with_nothing_to_commit_is_not_found(manifest: Manifest) -> None:
    with pytest.raises(TableNotFound):
        commit(manifest, None, Proposal(DEFINITION), ME, lambda state, actions: ())
