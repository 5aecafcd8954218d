"""Reading a version in each situation that garbage collection, crashes and races can leave.

The table has eight versions, each with one file more than the one before. In each case a new
reader and a reader with an older state see the same.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from persist.manifest import (
    Manifest,
    ManifestDamaged,
    TableState,
    VersionNotKept,
    write_snapshot,
)
from persist.manifest.files import decode_changelog, encode_changelog, encode_snapshot
from persist.manifest.paths import changelog_path, commit_path, snapshot_path
from tests.persist.manifest.conftest import EVERY_STORE
from tests.persist.manifest.samples import fresh, grown_in_memory, history, persist
from tests.persist.manifest.stores import FaultyStore

VERSIONS = 8
V = 5
LOSER = "ffffffffffffffffffffffffffffffff"
DAMAGE = ["flipped", "cut", "empty"]


class Case:
    """The table, and the changes to its files."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.states = history(manifest, VERSIONS)

    def at(self, version: int) -> TableState:
        return self.states[version - 1]

    def changelog(self, version: int, uid: str | None = None) -> str:
        return changelog_path(self.manifest.folder, version, uid or self.at(version).uid)

    def snapshot(self, version: int, uid: str | None = None) -> str:
        return snapshot_path(self.manifest.folder, version, uid or self.at(version).uid)

    def write_snapshots(self, *versions: int) -> None:
        for version in versions:
            write_snapshot(self.manifest, self.at(version))

    def write_losing_snapshot(self, version: int) -> None:
        lie = replace(grown_in_memory(self.at(version)), uid=LOSER)
        self.manifest.store.put(self.snapshot(version, LOSER), encode_snapshot(lie))

    def write_losing_changelog(self, version: int) -> None:
        lineage = (*self.at(version).lineage[:-1], (version, LOSER))
        data = encode_changelog(lineage, persist(999))
        self.manifest.store.put(self.changelog(version, LOSER), data)

    def delete(self, *paths: str) -> None:
        for path in paths:
            self.manifest.store.delete(path)

    def damage(self, path: str, how: str) -> None:
        data = bytearray(self.manifest.store.get(path))
        if how == "flipped":
            data[len(data) // 2] ^= 0xFF
        kept = {"flipped": bytes(data), "cut": bytes(data[: len(data) // 2]), "empty": b""}
        self.manifest.store.put(path, kept[how])

    def is_read(self, *versions: int) -> None:
        """These versions (default: all) read as before, through every path to them."""
        for version in versions or range(1, VERSIONS + 1):
            expected = self.at(version)
            assert fresh(self.manifest).load(version) == expected
            if version in (V, VERSIONS):
                for known in (self.at(1), self.at(version - 1)):
                    assert fresh(self.manifest).load(version, known=known) == expected
        if not versions or VERSIONS in versions:
            assert fresh(self.manifest).load() == self.at(VERSIONS)

    def is_damaged(self, *versions: int) -> None:
        """A new reader of these versions gets an error that names the damage."""
        for version in versions:
            with pytest.raises(ManifestDamaged):
                fresh(self.manifest).load(version)


@pytest.fixture
def case(manifest: Manifest) -> Case:
    return Case(manifest)


def test_only_its_changelog_exists(case: Case) -> None:
    case.is_read()


def test_only_its_snapshot_exists(case: Case) -> None:
    case.write_snapshots(V)
    case.delete(*(case.changelog(version) for version in range(1, V + 1)))
    for version in range(V, VERSIONS + 1):
        assert fresh(case.manifest).load(version) == case.at(version)
    case.is_damaged(V - 1)


@EVERY_STORE
def test_both_its_changelog_and_its_snapshot_exist(case: Case) -> None:
    case.write_snapshots(V)
    case.is_read()


def test_two_snapshots_of_one_version_with_different_uids(case: Case) -> None:
    case.write_losing_snapshot(V)
    case.write_snapshots(V)
    case.is_read()


def test_a_snapshot_of_a_losing_uid_alone_is_no_snapshot_of_the_version(case: Case) -> None:
    for version in range(1, VERSIONS + 1):
        case.write_losing_snapshot(version)
    case.is_read()


def test_two_changelogs_of_one_version_with_different_uids(case: Case) -> None:
    for version in range(1, VERSIONS + 1):
        case.write_losing_changelog(version)
    case.is_read()


def test_a_late_snapshot_of_a_losing_uid_arrives_after_the_commit(case: Case) -> None:
    readers = [fresh(case.manifest) for _ in range(2)]
    assert [reader.load(V) for reader in readers] == [case.at(V)] * 2
    case.write_losing_snapshot(V)
    case.write_losing_snapshot(VERSIONS)
    for reader in readers:
        assert reader.load(V) == case.at(V)
        assert reader.refresh(case.at(V)) == case.at(VERSIONS)
    case.is_read()


def test_a_late_changelog_of_a_losing_uid_arrives_after_the_commit(case: Case) -> None:
    reader = fresh(case.manifest)
    assert reader.load(V) == case.at(V)
    case.write_losing_changelog(V)
    case.write_losing_changelog(VERSIONS)
    assert reader.load(V) == case.at(V)
    assert reader.refresh(case.at(V)) == case.at(VERSIONS)
    case.is_read()


@pytest.mark.parametrize("how", DAMAGE)
def test_the_newest_snapshot_is_damaged(case: Case, how: str) -> None:
    case.write_snapshots(2, 4, 6)
    case.damage(case.snapshot(6), how)
    case.is_read()


@pytest.mark.parametrize("how", DAMAGE)
def test_the_two_newest_snapshots_are_damaged(case: Case, how: str) -> None:
    case.write_snapshots(2, 4, 6)
    case.damage(case.snapshot(4), how)
    case.damage(case.snapshot(6), how)
    case.is_read()


@pytest.mark.parametrize("how", DAMAGE)
def test_all_snapshots_are_damaged_and_changelogs_go_back_to_version_one(
    case: Case, how: str
) -> None:
    case.write_snapshots(2, 4, 6)
    for version in (2, 4, 6):
        case.damage(case.snapshot(version), how)
    case.is_read()
    assert set(fresh(case.manifest).load().damaged_snapshots) == {
        case.snapshot(version) for version in (2, 4, 6)
    }


@pytest.mark.parametrize("how", DAMAGE)
def test_a_changelog_in_the_middle_is_damaged_without_a_snapshot(case: Case, how: str) -> None:
    case.damage(case.changelog(V), how)
    case.is_damaged(*range(V, VERSIONS + 1))
    case.is_read(*range(1, V))
    with pytest.raises(ManifestDamaged) as told:
        fresh(case.manifest).load()
    assert (told.value.path, told.value.version) == (case.changelog(V), V)
    assert told.value.uid == case.at(V).uid


@pytest.mark.parametrize("how", DAMAGE)
def test_a_changelog_in_the_middle_is_damaged_with_a_snapshot_that_covers_it(
    case: Case, how: str
) -> None:
    case.write_snapshots(V)
    case.damage(case.changelog(V), how)
    case.is_read()


@pytest.mark.parametrize("how", DAMAGE)
def test_a_changelog_and_the_snapshot_that_covers_it_are_damaged(case: Case, how: str) -> None:
    case.write_snapshots(V)
    case.damage(case.changelog(V), how)
    case.damage(case.snapshot(V), how)
    case.is_damaged(*range(V, VERSIONS + 1))
    case.is_read(*range(1, V))


def test_a_gap_in_a_lineage(case: Case, store: FaultyStore) -> None:
    """A changelog says that version 6 came right after version 4."""
    whole = decode_changelog(store.get(case.changelog(6)))
    lineage = tuple(place for place in whole.lineage if place[0] != V)
    store.put(case.changelog(6), encode_changelog(lineage, whole.actions))
    case.is_damaged(6)
    with pytest.raises(ManifestDamaged, match="has version 6 where 5 should be"):
        fresh(case.manifest).load(6)
    case.is_read(*range(1, 6))
    case.write_snapshots(6)
    case.is_read()


@EVERY_STORE
def test_a_changelog_of_the_lineage_is_missing(case: Case) -> None:
    case.delete(case.changelog(V))
    case.is_damaged(*range(V, VERSIONS + 1))
    case.write_snapshots(V)
    case.is_read()


@pytest.mark.parametrize("version", [-1, 0, VERSIONS + 1, 10**9])
def test_a_version_that_never_existed(case: Case, version: int) -> None:
    with pytest.raises(VersionNotKept) as told:
        fresh(case.manifest).load(version)
    assert (told.value.oldest, told.value.newest) == (1, VERSIONS)


@EVERY_STORE
def test_a_version_older_than_the_kept_ones(case: Case) -> None:
    case.delete(*(commit_path(case.manifest.folder, version) for version in (1, 2, 3)))
    for version in (1, 2, 3):
        with pytest.raises(VersionNotKept) as told:
            fresh(case.manifest).load(version, known=case.at(version))
        assert (told.value.oldest, told.value.newest) == (4, VERSIONS)
    for version in range(4, VERSIONS + 1):
        assert fresh(case.manifest).load(version) == case.at(version)


@pytest.mark.parametrize("snapshot", [False, True])
def test_the_very_first_version(case: Case, snapshot: bool) -> None:
    if snapshot:
        case.write_snapshots(1)
    case.is_read(1)
