"""A version that replaces the table has its own definition, and keeps the state of the writers.

Any process that completes an interrupted switch gets the same result.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from msgspec.structs import replace

from persist.manifest import (
    Action,
    Applied,
    CheckpointAction,
    Fenced,
    Manifest,
    OriginAction,
    Owner,
    Properties,
    Proposal,
    Schema,
    Spec,
    SwitchRefused,
    WriterAction,
    WriterIdentity,
    claim_version,
    commit,
)
from persist.manifest.actions import OriginAhead
from persist.store import ObjectStore
from persist.switching import finish_switch, load_current, roll_back, switch_version
from tests.drivers.memory_store import MemoryStore
from tests.drivers.pushing import Killed, KillingStore
from tests.persist.manifest.samples import DAY, DEFINITION, ME, OTHER, add

TABLE = ("ns", "t")
KEYED = Properties(values={"primary_key": ["k"], "timestamp_unit": "us"})
ANEW: tuple[Action, ...] = (
    Schema(schema_id=101, arrow="BBBB"),
    Spec(spec_id=101, fields=()),
    KEYED,
)
OLD_STATE, NEW_STATE = (
    CheckpointAction("source", text, None, "me", 1, 7) for text in ("AAAA", "BBBB")
)


def commit_to(store: Any, version: int, *actions: Action) -> None:
    """Commit to a version without a base state."""
    commit(Manifest(store, *TABLE, version), None, Proposal(actions), OTHER)


def made() -> tuple[ObjectStore, int]:
    """A table with rows and the state of their writers, and a version that will replace it."""
    store: Any = MemoryStore()
    origin = OriginAction("o", "me", 1, 40, (OriginAhead(1, DAY, 44),))
    key = Properties(values={"primary_key": ["time"], "timestamp_unit": "us"})
    commit_to(
        store, 1, *DEFINITION[:2], key, WriterAction("me", "first", 1, "open"), Owner("me", 1)
    )
    commit_to(store, 1, add("data/a", 7), Applied("me", 1, 1, DAY, 7), origin)
    commit_to(store, 1, OLD_STATE, replace(OLD_STATE, partition="another"))
    version = claim_version(store, *TABLE, "_copy/c/1")
    there = replace(add("data/b", 0, kind="push", values=()), schema_id=101, spec_id=101)
    commit_to(store, version, *ANEW, there, NEW_STATE)
    return store, version


def check_redefined(store: ObjectStore, version: int) -> None:
    """The version is current, with its own definition, rows and state, and knows the writers."""
    old, new = Manifest(store, *TABLE, 1).load(), load_current(store, *TABLE)
    assert new.table_version == version
    assert [*new.schemas, *new.specs] == [101, 101]
    assert new.properties == KEYED.values
    assert set(new.files) == {"data/b"}
    assert new.checkpoints["source"] == NEW_STATE
    assert new.checkpoints["another"].state == OLD_STATE.state
    assert (new.writers, new.owner, new.applied) == (old.writers, old.owner, old.applied)
    assert new.origins["o"].complete == 40
    assert new.origins["o"].ahead == (), "its partitions are no more"


def test_any_process_that_completes_the_switch_redefines_the_table() -> None:
    for at in itertools.count(1):
        store, version = made()
        killing: Any = KillingStore(store, at, done=at % 2 == 0)
        try:
            switch_version(killing, *TABLE, version, push_id="c", reshape=ME)
            killed = False
        except Killed:
            killed = True
            if Manifest(store, *TABLE, 1).load().sealed is None:
                assert load_current(store, *TABLE).table_version == 1
                switch_version(store, *TABLE, version, push_id="c", reshape=ME)
            finish_switch(store, *TABLE)
        check_redefined(store, version)
        if not killed:
            assert at > 5
            return


def test_no_switch_or_rollback_crosses_a_redefinition() -> None:
    store, version = made()
    with pytest.raises(SwitchRefused, match="define"):
        switch_version(store, *TABLE, version)
    switch_version(store, *TABLE, version, reshape=ME)
    with pytest.raises(SwitchRefused, match="define"):
        roll_back(store, *TABLE)
    with pytest.raises(SwitchRefused, match="is not above"):
        switch_version(store, *TABLE, 1, reshape=ME)
    pushed = claim_version(store, *TABLE, "begun before")
    commit_to(store, pushed, *DEFINITION)
    with pytest.raises(SwitchRefused, match="define"):
        switch_version(store, *TABLE, pushed)
    check_redefined(store, version)


def test_only_the_owner_redefines_a_table() -> None:
    store, version = made()
    with pytest.raises(SwitchRefused, match="'me' in epoch 1 owns the table's writes"):
        switch_version(store, *TABLE, version, reshape=OTHER)
    # A writer that was replaced while it was paused is fenced, although the table's owner still
    # has its name.
    commit_to(store, 1, WriterAction("me", "second", 2, "open"))
    with pytest.raises(Fenced):
        switch_version(store, *TABLE, version, reshape=ME)
    again = WriterIdentity("me", "second", 2)
    with pytest.raises(SwitchRefused, match="in epoch 1"):
        switch_version(store, *TABLE, version, reshape=again)
    commit_to(store, 1, Owner("me", 2))
    switch_version(store, *TABLE, version, reshape=again)
    check_redefined(store, version)
