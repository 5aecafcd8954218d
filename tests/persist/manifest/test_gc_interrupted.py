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
from tests.persist.manifest.aged_table import AgedTable
from tests.persist.manifest.conftest import IN_MEMORY
from tests.persist.manifest.samples import fresh

LAST_FOUR = Retention(retain_s=0, orphan_grace_s=3600, keep_versions=4)
KINDS = (".commit", ".changelog", ".snapshot", ".parquet")


def prepare(aged: AgedTable) -> int:
    """A table with garbage of every kind; returns the oldest version that will be kept."""
    aged.live(9, snapshots=(2, 4))
    at = aged.states[3]
    aged.store.put(snapshot_path(aged.manifest.folder, at.version, at.uid), b"damaged")
    aged.plant_strays(("ffffffff",))
    aged.store.advance(hours=3)
    planned = clean_up(aged.manifest, LAST_FOUR, dry_run=True)
    counts = (planned.commits, planned.changelogs, planned.snapshots, planned.data)
    assert all(kind.files for kind in counts)
    assert (planned.snapshot_version, planned.oldest) == (6, 6)
    assert planned.horizon is not None
    return planned.oldest


def interrupted(aged: AgedTable, at: int) -> bool:
    """Whether the run reached its call number ``at``, which fails."""
    aged.store.fail_at, aged.store.failed = at, False
    try:
        clean_up(fresh(aged.manifest), LAST_FOUR)
    except (StoreUnavailable, CommitUnclear):
        assert aged.store.failed
    finally:
        aged.store.fail_at = None
    return aged.store.failed


def run_again(aged: AgedTable, oldest: int) -> dict[str, int]:
    """A complete run that keeps no version below ``oldest``; the remaining objects by kind."""
    clean_up(fresh(aged.manifest), LAST_FOUR)
    aged.check_kept(oldest)
    return {kind: len(aged.names(kind)) for kind in KINDS}


def check_every_step(aged: AgedTable, stride: int) -> int:
    """Interrupt a run at every ``stride``-th call, each time from the start; its call count."""
    oldest = prepare(aged)
    before = aged.contents()
    step = 0
    while interrupted(aged, step):
        aged.check_kept(oldest, none_below=False)
        # A horizon committed before the interruption is a version too, so one more may be deleted.
        head = fresh(aged.manifest).head()
        left = run_again(aged, max(oldest, head - 3))
        assert left[".parquet"] == len(set().union(*(s.files for s in aged.states[oldest - 1 :])))
        assert not [name for name in aged.names("") if "ffffffff" in name]
        aged.back_to(before)
        step += stride
    aged.check_kept(oldest)
    return step


@IN_MEMORY
def test_interrupted_at_every_step_it_loses_nothing_and_can_be_run_again(aged: AgedTable) -> None:
    assert check_every_step(aged, 1) > 60


@pytest.mark.slow
@pytest.mark.s3
@pytest.mark.parametrize("real_store", ["s3"], indirect=True)
def test_interrupted_at_some_steps_on_s3_it_loses_nothing(aged: AgedTable) -> None:
    assert check_every_step(aged, 29) > 60


def test_two_concurrent_runs_do_the_same_as_one(aged: AgedTable) -> None:
    """The second run completes while the first is at its n-th delete, for some n."""
    oldest = prepare(aged)
    deletes = 0

    def meanwhile(path: str) -> None:
        nonlocal deletes
        deletes += 1
        if deletes in (1, 3, 7, 15):
            hook, aged.store.on_delete = aged.store.on_delete, lambda path: None
            clean_up(fresh(aged.manifest), LAST_FOUR)
            aged.store.on_delete = hook

    aged.store.on_delete = meanwhile
    clean_up(fresh(aged.manifest), LAST_FOUR)
    assert deletes > 15
    aged.check_kept(max(oldest, fresh(aged.manifest).head() - 3))
    assert not [name for name in aged.names("") if "ffffffff" in name]


def test_a_snapshot_that_does_not_read_back_stops_before_anything_is_deleted(
    aged: AgedTable,
) -> None:
    prepare(aged)
    names = set(aged.names(""))
    real = aged.store.put

    def rotten(path: str, data: bytes) -> object:
        return real(path, data[:-1] if path.endswith(".snapshot") else data)

    aged.store.put = rotten  # type: ignore[method-assign, assignment]
    with pytest.raises(ManifestDamaged):
        clean_up(fresh(aged.manifest), LAST_FOUR)
    assert names <= set(aged.names(""))


def test_a_damaged_changelog_that_is_needed_stops_before_anything_is_deleted(
    aged: AgedTable,
) -> None:
    prepare(aged)
    (path,) = [n for n in aged.names(".changelog") if aged.states[6].uid in n]
    aged.store.put(path, b"damaged")
    names = aged.names("")
    with pytest.raises(ManifestDamaged, match=aged.states[6].uid):
        clean_up(fresh(aged.manifest), LAST_FOUR)
    assert aged.names("") == names
    with pytest.raises(VersionNotKept):
        fresh(aged.manifest).load(99)
