"""Garbage collection of table versions: the latest ones and those with readers are kept."""

from __future__ import annotations

import pytest

from persist.manifest import (
    Manifest,
    ManifestDamaged,
    Pin,
    Proposal,
    TableVersionNotKept,
    claim_version,
    commit,
    give_up_version,
    list_versions,
    remove_pin,
    write_pin,
)
from persist.store import ObjectStore, StoreUnavailable
from persist.switching import (
    VersionRetention,
    VersionsCleaned,
    clean_up_versions,
    roll_back,
    switch_version,
)
from tests.persist.manifest.conftest import EVERY_STORE
from tests.persist.manifest.samples import DEFINITION, OTHER, add
from tests.persist.manifest.stores import ClockedStore, FaultyStore

TABLE = ("ns", "flights")
RETENTION = VersionRetention(keep=2, grace_s=3600.0)


def make(store: ObjectStore, version: int) -> None:
    """A version with one file."""
    manifest = Manifest(store, *TABLE, version)
    store.put(manifest.object_path("data/one.parquet"), b"rows")
    actions = (*DEFINITION, add("data/one.parquet", kind="push", writer=OTHER))
    commit(manifest, None, Proposal(actions), OTHER)


def clean(store: ObjectStore, retention: VersionRetention = RETENTION) -> VersionsCleaned:
    """One run; a dry run reports the same beforehand."""
    dry = clean_up_versions(store, *TABLE, retention, dry_run=True)
    done = clean_up_versions(store, *TABLE, retention)
    assert (dry.marked, dry.deleted, dry.objects) == (done.marked, done.deleted, done.objects)
    return done


def kept(store: ObjectStore) -> list[int]:
    """The versions that can be read and switched to."""
    return [each.version for each in list_versions(store, *TABLE) if each.kept]


@EVERY_STORE
def test_the_last_versions_stay_and_older_ones_are_deleted_later(real_store: ObjectStore) -> None:
    store = ClockedStore(real_store)
    for version in range(1, 6):
        make(store, version)
        if version > 1:
            switch_version(store, *TABLE, version)
    reader = Manifest(store, *TABLE, 1)
    state = reader.load()
    done = clean(store)
    assert (done.marked, done.deleted) == ((1, 2), ())
    assert kept(store) == [3, 4, 5]
    with pytest.raises(TableVersionNotKept, match="existing versions: 3, 4, 5"):
        switch_version(store, *TABLE, 1)
    assert reader.refresh(state) == state, "whoever reads it goes on"
    store.advance(seconds=3601)
    done = clean(store)
    assert (done.marked, done.deleted, done.objects.files) == ((), (1, 2), 12)
    assert not list(store.list("ns/flights/v1/"))
    assert clean(store).deleted == ()
    assert kept(store) == [3, 4, 5]
    roll_back(store, *TABLE)
    assert claim_version(store, *TABLE, "later") == 6


def test_rolled_back_versions_do_not_displace_rollback_targets(
    real_store: ObjectStore,
) -> None:
    store = ClockedStore(real_store)
    for version in (1, 2, 3):
        make(store, version)
        if version > 1:
            switch_version(store, *TABLE, version)
    for bad in (4, 5, 6):
        make(store, bad)
        switch_version(store, *TABLE, bad)
        assert roll_back(store, *TABLE).table_version == 3
        clean(store)
        store.advance(seconds=3601)
        clean(store)
    assert kept(store) == [1, 2, 3, 5, 6]
    assert [roll_back(store, *TABLE).table_version for _ in range(2)] == [2, 1]


def test_an_abandoned_push_is_deleted_and_a_running_one_stays(real_store: ObjectStore) -> None:
    store = ClockedStore(real_store)
    make(store, 1)
    assert clean(store) == VersionsCleaned(*TABLE, dry_run=False)
    versions = [claim_version(store, *TABLE, f"push-{number}") for number in range(2)]
    for version in versions:
        make(store, version)
    give_up_version(store, *TABLE, versions[0])
    assert clean(store).deleted == ()
    store.advance(seconds=3601)
    assert clean(store).deleted == (2,)
    assert kept(store) == [1, 3]


def test_the_target_of_a_running_switch_is_never_deleted(
    real_store: ObjectStore,
) -> None:
    faulty = FaultyStore(real_store)
    store = ClockedStore(faulty)
    make(store, 1)
    make(store, 2)
    faulty.plan("before", "create", "_current/")
    with pytest.raises(StoreUnavailable):
        switch_version(store, *TABLE, 2)
    give_up_version(store, *TABLE, 2)  # too late: the old version is sealed for it
    store.advance(seconds=3601)
    assert clean(store).deleted == ()
    assert Manifest(store, *TABLE, 2).load().files


def five_versions(store: ObjectStore) -> None:
    for version in range(1, 6):
        make(store, version)
        if version > 1:
            switch_version(store, *TABLE, version)


def test_table_versions_since_the_pinned_one_stay(real_store: ObjectStore) -> None:
    """The publisher has not followed all switches yet, however long ago they were."""
    store = ClockedStore(real_store)
    five_versions(store)
    write_pin(store, *TABLE, "iceberg", Pin(2, 1))
    store.advance(days=30)
    assert clean(store).marked == (1,)
    store.advance(seconds=3601)
    assert clean(store).deleted == (1,)
    assert kept(store) == [2, 3, 4, 5]
    write_pin(store, *TABLE, "iceberg", Pin(5, 1))
    assert clean(store).marked == (2,)
    store.advance(seconds=3601)
    write_pin(store, *TABLE, "delta", Pin(2, 1))
    assert clean(store).deleted == (), "given up, but a pin names it"
    remove_pin(store, *TABLE, "delta")
    assert clean(store).deleted == (2,)


def test_table_versions_of_a_published_table_stay_as_long_as_its_versions_do(
    real_store: ObjectStore,
) -> None:
    """Published snapshots younger than that list their files."""
    store = ClockedStore(real_store)
    five_versions(store)
    write_pin(store, *TABLE, "delta", Pin(5, 1))
    for _ in range(11):
        assert clean(store) == VersionsCleaned(*TABLE, dry_run=False)
        store.advance(hours=2)
    store.advance(hours=3)
    assert clean(store).marked == (1, 2)
    assert (
        clean_up_versions(store, *TABLE, VersionRetention(grace_s=-1.0, retain_s=30 * 3600)).deleted
        == ()
    )
    store.advance(hours=2)
    assert clean(store).deleted == (1, 2)


def test_a_pin_that_cannot_be_read_stops_the_deletion_of_table_versions(
    real_store: ObjectStore,
) -> None:
    store = ClockedStore(real_store)
    five_versions(store)
    clean(store)
    store.advance(days=3)
    store.put("ns/flights/_published/delta.json", b"{")
    with pytest.raises(ManifestDamaged, match="_published/delta"):
        clean_up_versions(store, *TABLE, RETENTION)
    assert store.deleted == []
    remove_pin(store, *TABLE, "delta")
    assert clean(store).deleted == (1, 2)


def test_a_table_version_that_is_pinned_during_the_run_stays(real_store: ObjectStore) -> None:
    """The pin is found at the last look before anything is deleted."""
    store = ClockedStore(real_store)
    five_versions(store)
    clean(store)
    store.advance(days=3)
    looks = 0

    def publish(call: str, path: str) -> None:
        nonlocal looks
        looks += call == "list" and "_published" in path
        if looks == 2:
            store.on_call = lambda call, path: None
            write_pin(store, *TABLE, "iceberg", Pin(1, 1))

    store.on_call = publish
    assert clean_up_versions(store, *TABLE, RETENTION).deleted == ()
    assert looks == 2
    remove_pin(store, *TABLE, "iceberg")
    assert clean_up_versions(store, *TABLE, RETENTION).deleted == (1, 2)
