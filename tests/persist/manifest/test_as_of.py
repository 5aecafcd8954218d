"""The version that was current at a given time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from msgspec import structs

from persist.manifest import Manifest, MomentNotKept, TableNotFound, version_as_of
from persist.manifest.files import encode_commit
from persist.manifest.lineage import read_commit
from persist.manifest.paths import commit_path
from tests.persist.manifest.samples import fresh, history

START = datetime(2026, 11, 21, 15, tzinfo=UTC)
STEP = timedelta(seconds=10)


def _dated(manifest: Manifest, versions: int) -> None:
    """Versions ten seconds apart, beginning at :data:`START`."""
    history(manifest, versions)
    for version in range(1, versions + 1):
        commit = read_commit(manifest.store, manifest.folder, version)
        assert commit is not None
        at = (START + (version - 1) * STEP).isoformat()
        dated = structs.replace(commit, at=at)
        path = commit_path(manifest.folder, version)
        manifest.store.delete(path)
        manifest.store.put(path, encode_commit(dated))


@pytest.mark.parametrize("versions", [1, 2, 9])
def test_the_newest_version_at_or_before_a_moment_is_found(
    manifest: Manifest, versions: int
) -> None:
    _dated(manifest, versions)
    known = fresh(manifest)
    for version in range(1, versions + 1):
        at = START + (version - 1) * STEP
        for later in (timedelta(0), timedelta(microseconds=1), STEP - timedelta(microseconds=1)):
            assert version_as_of(known, at + later) == version
        elsewhere = at.astimezone(timezone(timedelta(hours=5)))
        assert version_as_of(known, elsewhere) == version
    assert version_as_of(known, START + timedelta(days=365)) == versions


def test_a_moment_before_the_oldest_kept_version_is_refused(manifest: Manifest) -> None:
    _dated(manifest, 3)
    with pytest.raises(
        MomentNotKept, match=r"the oldest kept version, 1, is of 2026-11-21T15:00:00"
    ):
        version_as_of(fresh(manifest), START - timedelta(microseconds=1))


def test_a_moment_needs_a_time_zone_and_a_table_a_version(manifest: Manifest) -> None:
    with pytest.raises(TableNotFound):
        version_as_of(fresh(manifest), START)
    with pytest.raises(ValueError, match="has no time zone"):
        version_as_of(fresh(manifest), START.replace(tzinfo=None))


def test_a_version_committed_just_now_is_found_for_now(manifest: Manifest) -> None:
    history(manifest, 4)
    assert version_as_of(fresh(manifest), datetime.now(UTC) + timedelta(hours=1)) == 4
