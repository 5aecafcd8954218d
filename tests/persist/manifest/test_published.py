"""Pins of published formats: garbage collection keeps what readers of published versions need."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from persist.manifest import (
    CommitUnclear,
    Manifest,
    ManifestDamaged,
    Pin,
    Proposal,
    Removals,
    Retention,
    VersionNotKept,
    carry_out,
    claim_version,
    clean_up,
    commit,
    kept_versions,
    list_tables,
    list_versions,
    plan_clean_up,
    read_pins,
    remove_pin,
    tables_of,
    verify,
    write_pin,
)
from persist.store import ObjectStore, StoreUnavailable
from persist.switching import VersionRetention, clean_up_versions, switch_version
from tests.drivers.memory_store import MemoryStore
from tests.persist.manifest.aged_table import HALF_A_DAY, AgedTable
from tests.persist.manifest.conftest import EVERY_STORE, IN_MEMORY
from tests.persist.manifest.samples import DEFINITION, OTHER, fresh
from tests.persist.manifest.stores import ClockedStore

TABLE = ("ns", "flights")
LAST_TWO = Retention(retain_s=0, orphan_grace_s=3600, keep_versions=2)


def pin(aged: AgedTable, version: int, format: str = "iceberg", table_version: int = 1) -> None:
    write_pin(aged.store, *TABLE, format, Pin(table_version, version))


@EVERY_STORE
def test_pins_are_written_raised_and_removed(real_store: ObjectStore) -> None:
    aged = AgedTable(ClockedStore(real_store), Manifest(real_store, *TABLE))
    aged.live(5)
    assert read_pins(real_store, *TABLE) == {}
    pin(aged, 2)
    pin(aged, 3, "delta")
    pin(aged, 4)
    assert read_pins(real_store, *TABLE) == {"iceberg": Pin(1, 4), "delta": Pin(1, 3)}
    for _ in range(2):
        remove_pin(real_store, *TABLE, "iceberg")
    assert read_pins(real_store, *TABLE) == {"delta": Pin(1, 3)}
    assert real_store.get("ns/flights/_published/delta.json") == b'{"table_version":1,"version":3}'


def test_invalid_pins_are_refused(aged: AgedTable) -> None:
    aged.live(2)
    for made in (Pin(0, 1), Pin(1, 0)):
        with pytest.raises(ValueError, match="begin at 1"):
            write_pin(aged.store, *TABLE, "iceberg", made)
    for name in ("", "../x", "Delta", "a/b", "1"):
        with pytest.raises(ValueError, match="format"):
            pin(aged, 1, name)


def test_versions_from_the_lowest_pin_on_are_kept(aged: AgedTable) -> None:
    aged.live(30, snapshots=(12,))
    pin(aged, 9)
    pin(aged, 7, "delta")
    assert clean_up(fresh(aged.manifest), HALF_A_DAY).oldest == 7
    aged.check_kept(7)
    pin(aged, 28, "delta")
    assert clean_up(fresh(aged.manifest), HALF_A_DAY).oldest == 9
    aged.check_kept(9)
    remove_pin(aged.store, *TABLE, "iceberg")
    remove_pin(aged.store, *TABLE, "delta")
    assert clean_up(fresh(aged.manifest), HALF_A_DAY).oldest == 16
    aged.check_kept(16)


def test_a_pin_of_a_version_that_is_gone_keeps_what_is_left(aged: AgedTable) -> None:
    """It was left by a publisher that wrote a lower pin later, or by an earlier table."""
    aged.live(30)
    oldest = clean_up(fresh(aged.manifest), HALF_A_DAY).oldest
    with pytest.raises(VersionNotKept, match=f"{oldest}\\.\\."):
        pin(aged, 3)
    aged.live(40)
    assert clean_up(fresh(aged.manifest), HALF_A_DAY).oldest == oldest
    aged.check_kept(oldest)


def test_the_version_that_was_current_when_the_retention_began_is_kept_if_published(
    aged: AgedTable,
) -> None:
    aged.live(40)
    aged.store.advance(days=2)
    aged.live(52)  # the last 12 of them are young, and 40 was current until 41
    pin(aged, 52)
    young = Retention(retain_s=11.5 * 3600, keep_versions=1)
    assert clean_up(fresh(aged.manifest), young).oldest == 40
    aged.check_kept(40)
    aged.live(fresh(aged.manifest).head() + 1)
    pin(aged, aged.head.version)
    only_the_head = Retention(retain_s=1800, keep_versions=1)
    assert clean_up(fresh(aged.manifest), only_the_head).oldest == aged.head.version - 1
    remove_pin(aged.store, *TABLE, "iceberg")
    assert clean_up(fresh(aged.manifest), young).oldest >= aged.head.version - 1


def test_a_pin_of_another_table_version_keeps_all_of_this_one(aged: AgedTable) -> None:
    """The publisher may have published any version of it before it raises the pin."""
    aged.live(30)
    aged.store.put("ns/flights/_published/iceberg.json", b'{"table_version":7,"version":25}')
    assert clean_up(fresh(aged.manifest), HALF_A_DAY).oldest == 1
    aged.check_kept(1)


def test_a_daemon_that_finds_more_to_keep_than_before_knows_what_was_removed(
    aged: AgedTable,
) -> None:
    """The pin is the table's first, or lower than an earlier one that another publisher wrote."""
    aged.live(30)
    pin(aged, 20)
    removals = Removals()
    assert plan_clean_up(fresh(aged.manifest), HALF_A_DAY, removals=removals).oldest == 15
    pin(aged, 5)
    aged.live(33)
    plan = plan_clean_up(fresh(aged.manifest), HALF_A_DAY, removals=removals)
    assert plan.oldest == 5
    carry_out(aged.manifest, plan, plan.state)
    aged.check_kept(5)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"table_version":1}',
        b'{"table_version":1,"version":0}',
        b'{"table_version":1,"version":3,"more":1}',
    ],
)
def test_a_pin_that_cannot_be_read_stops_the_collection_and_is_named(
    aged: AgedTable, content: bytes
) -> None:
    """The pin may be of a format that only a later release knows."""
    aged.live(30)
    aged.plant_strays()
    aged.store.advance(days=3)
    pin(aged, 29)
    aged.store.put("ns/flights/_published/hudi.json", content)
    with pytest.raises(ManifestDamaged, match=r"_published/hudi\.json.*nothing of the table"):
        clean_up(fresh(aged.manifest), HALF_A_DAY)
    assert aged.store.deleted == []


def test_other_objects_beside_pins_are_ignored(aged: AgedTable) -> None:
    aged.live(20)
    for name in (f"{3:020d}", "notes.txt", "iceberg.json.bak", "deep/iceberg2/x.txt"):
        aged.store.put(f"ns/flights/_published/{name}", b"?")
    assert read_pins(aged.store, *TABLE) == {}
    clean_up(fresh(aged.manifest), HALF_A_DAY)
    assert aged.store.exists("ns/flights/_published/notes.txt") is not None


@IN_MEMORY
def test_a_first_pin_written_at_any_step_of_a_collection_is_kept_or_refused(
    aged: AgedTable,
) -> None:
    """The publisher was paused since it read the version as the head."""
    aged.live(12)
    aged.store.advance(hours=3)
    before = aged.contents()
    outcomes: list[bool] = []
    while (pinned := pinned_meanwhile(aged, len(outcomes))) is not None:
        if pinned:
            aged.check_kept(4, none_below=False)
            # The floor may have been raised above the pin. Everything is still read as before.
            assert clean_up(fresh(aged.manifest), LAST_TWO).oldest == 4
            aged.check_kept(4)
        outcomes.append(pinned)
        remove_pin(aged.store, *TABLE, "iceberg")
        for info in list(aged.store.list("ns/flights/v1/_floor/")):
            aged.store.delete(info.path)
        aged.back_to(before)
    assert outcomes.count(True) > 10
    assert outcomes.count(False) > 10


def pinned_meanwhile(aged: AgedTable, step: int) -> bool | None:
    """Collect, and pin version 4 before this call: whether it is pinned, None without that call."""
    left, pinned = step, None

    def publish(call: str, path: str) -> None:
        nonlocal left, pinned
        left -= 1
        if left == -1:
            aged.store.on_call = lambda call, path: None
            try:
                pin(aged, 4)
                pinned = True
            except VersionNotKept:
                pinned = False

    aged.store.on_call = publish
    clean_up(fresh(aged.manifest), LAST_TWO)
    aged.store.on_call = lambda call, path: None
    return pinned


@IN_MEMORY
def test_a_collection_that_ends_at_any_step_deletes_nothing_that_is_pinned(
    aged: AgedTable,
) -> None:
    aged.live(9, snapshots=(2, 4))
    aged.plant_strays(("ffffffff",))
    aged.store.advance(hours=3)
    pin(aged, 3)
    before = aged.contents()
    step, ended = 0, True
    while ended:
        aged.store.fail_at, aged.store.failed = step, False
        try:
            clean_up(fresh(aged.manifest), LAST_TWO)
        except (StoreUnavailable, CommitUnclear):
            assert aged.store.failed
        ended, aged.store.fail_at = aged.store.failed, None
        aged.check_kept(3, none_below=False)
        clean_up(fresh(aged.manifest), LAST_TWO)
        aged.check_kept(3)
        aged.back_to(before)
        step += 1
    assert step > 50


METADATA = (
    "metadata/v1.metadata.json",
    "metadata/version-hint.text",
    "metadata/snap-1.avro",
    "_delta_log/00000000000000000007.json",
    "_delta_log/00000000000000000007.checkpoint.parquet",
    "_delta_log/_last_checkpoint",
    f"_published/{1:020d}",
)


@EVERY_STORE
def test_metadata_of_published_formats_is_no_table_and_no_garbage(real_store: ObjectStore) -> None:
    store = ClockedStore(real_store)
    aged = AgedTable(store, Manifest(store, *TABLE))
    aged.live(12)
    aged.plant_strays()
    for name in METADATA:
        store.put(f"ns/flights/{name}", b"{}")
        # What is left of a table whose versions were deleted by hand is none.
        store.put(f"ns/deleted/{name}", b"{}")
        store.put(f"other/deleted/{name}", b"{}")
    pin(aged, 12, "delta")
    assert list_tables(store) == [TABLE]
    assert list(tables_of(store, "ns")) == ["flights"]
    assert [each.version for each in list_versions(store, *TABLE)] == [1]
    store.advance(days=30)
    before = verify(fresh(aged.manifest))
    assert before.findings == ()
    assert before.stray_data.files == 24
    clean_up(fresh(aged.manifest), LAST_TWO)
    assert clean_up_versions(store, *TABLE, VersionRetention()).deleted == ()
    assert all(store.exists(f"ns/flights/{name}") for name in METADATA)
    assert verify(fresh(aged.manifest)).stray_data.files == 0
    # The same beside several table versions.
    claimed = claim_version(store, *TABLE, "push")
    assert claimed == 2
    make_like(aged, claimed)
    switch_version(store, *TABLE, claimed)
    assert list_tables(store) == [TABLE]
    assert [each.version for each in list_versions(store, *TABLE) if each.kept] == [1, 2]


def make_like(aged: AgedTable, version: int) -> None:
    """A table version without rows, with the same definition."""
    commit(Manifest(aged.store, *TABLE, version), None, Proposal(DEFINITION), OTHER)


class PublishedTable(RuleBasedStateMachine):
    """Commits, publications and collections in any order, each of which may end at any call.

    Two formats are published, each by a publisher that reads the head, writes its pin only at
    times, and may be away for days.
    """

    RETENTION = Retention(retain_s=5.5 * 3600, orphan_grace_s=3600, keep_versions=1)

    def __init__(self) -> None:
        super().__init__()
        self.store = ClockedStore(MemoryStore())
        self.aged = AgedTable(self.store, Manifest(self.store, *TABLE))
        self.aged.live(3)
        self.published: dict[str, int] = {}
        self.since = 1
        self.born = dict.fromkeys(range(1, 4), self.store.now())

    @rule(count=st.integers(1, 6))
    def commit(self, count: int) -> None:
        for _ in range(count):
            self.aged.live(self.aged.head.version + 1)
            self.born[self.aged.head.version] = self.store.now()

    @rule(hours=st.integers(1, 9))
    def wait(self, hours: int) -> None:
        self.store.advance(hours=hours)

    @rule(
        format=st.sampled_from(["iceberg", "delta"]), back=st.integers(0, 5), raised=st.booleans()
    )
    def publish(self, format: str, back: int, raised: bool) -> None:
        version = max(self.aged.head.version - back, self.published.get(format, 1))
        first = format not in self.published
        if not self.published:
            self.since = kept_versions(self.aged.manifest)[0]
        if first or raised:
            try:
                write_pin(self.store, *TABLE, format, Pin(1, version))
            except VersionNotKept:
                assert first
                return
        self.published[format] = version

    @precondition(lambda self: self.published)
    @rule(format=st.sampled_from(["iceberg", "delta"]))
    def switch_off(self, format: str) -> None:
        remove_pin(self.store, *TABLE, format)
        self.published.pop(format, None)

    @rule(ends=st.none() | st.integers(0, 80))
    def collect(self, ends: int | None) -> None:
        self.store.fail_at = ends
        try:
            clean_up(fresh(self.aged.manifest), self.RETENTION)
        except (StoreUnavailable, CommitUnclear):
            assert ends is not None
        finally:
            self.store.fail_at, self.store.failed = None, False
        # It commits a version too.
        while (state := fresh(self.aged.manifest).load()).version > self.aged.head.version:
            self.aged.states.append(state)
            self.born[state.version] = self.store.now()

    @invariant()
    def all_files_that_readers_need_exist(self) -> None:
        if not self.published:
            return
        states, stored = self.aged.states, {i.path for i in self.store.list("ns/flights/v1/data/")}
        lowest, before = min(self.published.values()), self.store.now() - timedelta(hours=5.4)
        for state in states:
            young = self.born.get(state.version + 1, self.store.now()) > before
            if state.version >= lowest or (young and state.version >= self.since):
                missing = {self.aged.manifest.object_path(p) for p in state.files} - stored
                assert not missing, f"version {state.version}, published {self.published}"


PublishedTable.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
test_no_history_of_publications_and_collections_loses_a_file = PublishedTable.TestCase
