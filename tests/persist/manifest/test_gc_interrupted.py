"""Garbage collection is interrupted at any step, or meets another run.

Kept versions stay, and the next run deletes the rest.
"""

from __future__ import annotations

import pytest

from persist.manifest import (
    CommitUnclear,
    ManifestDamaged,
    Retention,
    VersionNotKept,
    clean_up,
)
from persist.manifest.paths import snapshot_path
from persist.store import StoreUnavailable
from tests.persist.manifest.conftest import IN_MEMORY
from tests.persist.manifest.samples import fresh
from tests.persist.manifest.yard import Yard

LAST_FOUR = Retention(retain_s=0, orphan_grace_s=3600, keep_versions=4)
KINDS = (".commit", ".changelog", ".snapshot", ".parquet")


def prepare(yard: Yard) -> int:
    """A table with garbage of every kind; returns the oldest version that will be kept."""
    yard.live(9, snapshots=(2, 4))
    at = yard.states[3]
    yard.store.put(snapshot_path(yard.manifest.folder, at.version, at.uid), b"damaged")
    yard.plant_strays(("ffffffff",))
    yard.store.advance(hours=3)
    planned = clean_up(yard.manifest, LAST_FOUR, dry_run=True)
    counts = (planned.commits, planned.changelogs, planned.snapshots, planned.data)
    assert all(kind.files for kind in counts)
    assert (planned.snapshot_version, planned.oldest) == (6, 6)
    assert planned.horizon is not None
    return planned.oldest


def interrupted(yard: Yard, at: int) -> bool:
    """Whether the run reached its call number ``at``, which fails."""
    yard.store.fail_at, yard.store.failed = at, False
    try:
        clean_up(fresh(yard.manifest), LAST_FOUR)
    except (StoreUnavailable, CommitUnclear):
        assert yard.store.failed
    finally:
        yard.store.fail_at = None
    return yard.store.failed


def run_again(yard: Yard, oldest: int) -> dict[str, int]:
    """A complete run that keeps no version below ``oldest``; the remaining objects by kind."""
    clean_up(fresh(yard.manifest), LAST_FOUR)
    yard.check_kept(oldest)
    return {kind: len(yard.names(kind)) for kind in KINDS}


def check_every_step(yard: Yard, stride: int) -> int:
    """Interrupt a run at every ``stride``-th call, each time from the start; its call count."""
    oldest = prepare(yard)
    before = yard.contents()
    step = 0
    while interrupted(yard, step):
        yard.check_kept(oldest, none_below=False)
        # A horizon committed before the interruption is a version too, so one more may be deleted.
        head = fresh(yard.manifest).head()
        left = run_again(yard, max(oldest, head - 3))
        assert left[".parquet"] == len(set().union(*(s.files for s in yard.states[oldest - 1 :])))
        assert not [name for name in yard.names("") if "ffffffff" in name]
        yard.back_to(before)
        step += stride
    yard.check_kept(oldest)
    return step


@IN_MEMORY
def test_interrupted_at_every_step_it_loses_nothing_and_can_be_run_again(yard: Yard) -> None:
    assert check_every_step(yard, 1) > 60


@pytest.mark.slow
@pytest.mark.s3
@pytest.mark.parametrize("real_store", ["s3"], indirect=True)
def test_interrupted_at_some_steps_on_s3_it_loses_nothing(yard: Yard) -> None:
    assert check_every_step(yard, 29) > 60


def test_two_concurrent_runs_do_the_same_as_one(yard: Yard) -> None:
    """The second run completes while the first is at its n-th delete, for some n."""
    oldest = prepare(yard)
    deletes = 0

    def meanwhile(path: str) -> None:
        nonlocal deletes
        deletes += 1
        if deletes in (1, 3, 7, 15):
            hook, yard.store.on_delete = yard.store.on_delete, lambda path: None
            clean_up(fresh(yard.manifest), LAST_FOUR)
            yard.store.on_delete = hook

    yard.store.on_delete = meanwhile
    clean_up(fresh(yard.manifest), LAST_FOUR)
    assert deletes > 15
    yard.check_kept(max(oldest, fresh(yard.manifest).head() - 3))
    assert not [name for name in yard.names("") if "ffffffff" in name]


def test_a_snapshot_that_does_not_read_back_stops_before_anything_is_deleted(yard: Yard) -> None:
    prepare(yard)
    names = set(yard.names(""))
    real = yard.store.put

    def rotten(path: str, data: bytes) -> object:
        return real(path, data[:-1] if path.endswith(".snapshot") else data)

    yard.store.put = rotten  # type: ignore[method-assign, assignment]
    with pytest.raises(ManifestDamaged):
        clean_up(fresh(yard.manifest), LAST_FOUR)
    assert names <= set(yard.names(""))


def test_a_damaged_changelog_that_is_needed_stops_before_anything_is_deleted(yard: Yard) -> None:
    prepare(yard)
    (path,) = [n for n in yard.names(".changelog") if yard.states[6].uid in n]
    yard.store.put(path, b"damaged")
    names = yard.names("")
    with pytest.raises(ManifestDamaged, match=yard.states[6].uid):
        clean_up(fresh(yard.manifest), LAST_FOUR)
    assert yard.names("") == names
    with pytest.raises(VersionNotKept):
        fresh(yard.manifest).load(99)
