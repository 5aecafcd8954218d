"""A table's columns are only appended, so the numbers of columns in its files never change.

Daemons with old knowledge add columns at once, pushes bring columns in another order, tables are
switched, rolled back and defined again: of two schemas of one definition the earlier one is always
the beginning of the later one.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from itertools import pairwise

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ingester.pushes.record import PushPlan
from ingester.pushes.regions.shapes import ShapeClash, widened_by, with_schema
from ingester.schema.definition import widened
from persist.manifest import (
    Manifest,
    Owner,
    Properties,
    Proposal,
    ProposalConflict,
    Schema,
    Spec,
    SwitchRefused,
    TableState,
    TableVersionNotKept,
    VersionSealed,
    WriterIdentity,
    claim_version,
    commit,
)
from persist.partitioning import UNPARTITIONED
from persist.store import ObjectStore
from persist.switching import load_current, roll_back, switch_version
from persist.table import TableDefinition, read_schema
from tests.drivers.memory_store import MemoryStore

TABLE = ("ns", "t")
KINDS = (pa.int64(), pa.list_(pa.int64()), pa.struct({"x": pa.int64(), "y": pa.string()}))
NAMES = [f"c{number}" for number in range(12)]
names = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True)


def columns(chosen: list[str]) -> pa.Schema:
    return pa.schema([(name, KINDS[NAMES.index(name) % len(KINDS)]) for name in chosen])


def writer(name: str) -> WriterIdentity:
    return WriterIdentity(ingester_id=name, incarnation=name, epoch=1)


def check_appended(state: TableState) -> None:
    """Of all schemas, each is the beginning of the next, and the last one is current."""
    ids = sorted(state.schemas)
    schemas = [list(read_schema(state.schemas[each])) for each in ids]
    for (before, earlier), (after, later) in pairwise(zip(ids, schemas, strict=True)):
        assert after == before + 1
        assert later[: len(earlier)] == earlier
    definition = TableDefinition.of_state(state)
    assert list(definition.schema) == schemas[-1]
    assert definition.first_schema_id == ids[0]


def add_columns(store: ObjectStore, base: TableState, more: pa.Schema, name: str) -> None:
    """Commit as a daemon that knows the table as of ``base``. ProposalConflict if it is too old."""
    have = TableDefinition.of_state(base)
    wanted = widened(have, more)
    if wanted is not have:
        manifest = Manifest(store, *TABLE, base.table_version)
        proposal = Proposal([wanted.schema_action(), wanted.spec_action()])
        commit(manifest, base, proposal, writer(name))


class Table(RuleBasedStateMachine):
    """Each daemon knows some earlier state, and learns of a newer one by a conflict."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore()
        definition = TableDefinition(columns(["c0"]), UNPARTITIONED)
        proposal = Proposal([*definition.actions(), Owner(ingester_id="a", epoch=1)])
        state = commit(Manifest(self.store, *TABLE, 1), None, proposal, writer("a"))
        self.known = dict.fromkeys("abc", state)
        self.pushed: list[int] = []
        self.copied: list[int] = []
        self.firsts = {1}

    @rule(name=st.sampled_from("abc"), chosen=names)
    def a_daemon_adds_columns(self, name: str, chosen: list[str]) -> None:
        # Others may be faster, or have switched the table.
        with suppress(ProposalConflict, VersionSealed):
            add_columns(self.store, self.known[name], columns(chosen), name)
        self.known[name] = load_current(self.store, *TABLE)

    @rule(chosen=names)
    def a_push_prepares_a_generation(self, chosen: list[str]) -> None:
        """It widens the table first, and its generation has all schemas."""
        state = load_current(self.store, *TABLE)
        have = TableDefinition.of_state(state)
        plan = with_schema(PushPlan(), columns([*chosen, *reversed(have.schema.names)][::-1]))
        try:
            wanted = widened_by(have, plan)
        except ShapeClash:
            return
        if wanted is not have:
            manifest = Manifest(self.store, *TABLE, state.table_version)
            state = commit(manifest, state, Proposal([wanted.schema_action()]), writer("push"))
        number = claim_version(self.store, *TABLE, f"push-{len(self.pushed)}")
        parts = [one for one in state.actions() if isinstance(one, Schema | Spec | Properties)]
        commit(Manifest(self.store, *TABLE, number), None, Proposal(parts), writer("push"))
        self.pushed.append(number)

    @precondition(lambda self: self.pushed)
    @rule(which=st.integers(0, 100))
    def a_generation_becomes_current(self, which: int) -> None:
        number = self.pushed[which % len(self.pushed)]
        try:
            switch_version(self.store, *TABLE, number)
        except (SwitchRefused, TableVersionNotKept):
            return  # for example the table was defined again since

    @rule()
    def the_switch_is_rolled_back(self) -> None:
        try:
            roll_back(self.store, *TABLE)
        except (SwitchRefused, TableVersionNotKept):
            return

    @rule(chosen=names)
    def the_table_is_defined_again(self, chosen: list[str]) -> None:
        state = load_current(self.store, *TABLE)
        new = TableDefinition(columns(chosen), UNPARTITIONED)
        new = new.redefined(TableDefinition.of_state(state))
        number = claim_version(self.store, *TABLE, f"copy-{len(self.copied)}")
        self.copied.append(number)
        manifest = Manifest(self.store, *TABLE, number)
        commit(manifest, None, Proposal(new.actions()), writer("a"))
        try:
            switch_version(self.store, *TABLE, number, reshape=writer("a"))
        except SwitchRefused:
            return
        assert new.first_schema_id not in self.firsts
        self.firsts.add(new.first_schema_id)

    @invariant()
    def columns_were_only_appended(self) -> None:
        for number in {1, *self.pushed, *self.copied}:
            check_appended(Manifest(self.store, *TABLE, number).load())
        check_appended(load_current(self.store, *TABLE))


Table.TestCase.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
test_columns_are_only_appended_whatever_happens = Table.TestCase


def test_daemons_that_add_columns_at_once_append_them_one_after_another() -> None:
    store = MemoryStore()
    definition = TableDefinition(columns(["c0"]), UNPARTITIONED)
    manifest = Manifest(store, *TABLE, 1)
    first = commit(manifest, None, Proposal(definition.actions()), writer("a"))
    conflicts = 0

    def add(name: str, mine: list[str]) -> None:
        nonlocal conflicts
        state = first
        for column in mine:
            while column not in TableDefinition.of_state(state).schema.names:
                try:
                    add_columns(store, state, columns([column]), name)
                except ProposalConflict:
                    conflicts += 1
                state = manifest.load()

    orders = {"a": NAMES, "b": NAMES[::-1], "c": NAMES[6:] + NAMES[:6]}
    threads = [threading.Thread(target=add, args=order) for order in orders.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    state = manifest.load()
    check_appended(state)
    assert sorted(TableDefinition.of_state(state).schema.names) == sorted(NAMES)
    assert conflicts
