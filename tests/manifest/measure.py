"""What commits and opening cost on local disk: ``python -m tests.manifest.measure [FOLDER]``.

Prints two tables. Files carry statistics of twenty columns, as a wide table's do; they lie in one
partition, which is the dearer case.
"""

from __future__ import annotations

import sys
import tempfile
from statistics import median
from time import perf_counter

from persist.manifest import (
    Action,
    Add,
    Applied,
    ColumnStats,
    Manifest,
    Proposal,
    TableState,
    commit,
    snapshot_due,
    write_snapshot,
)
from persist.store import open_store
from tests.manifest.samples import DAY, DEFINITION, ME
from tests.manifest.stores import FaultyStore


def wide(first_seq: int, files: int = 1) -> list[Action]:
    """So many files with one operation each, and how far that goes."""
    stats = {f"column_{n:02d}": ColumnStats(min=n, max=n + 0.5, nulls=0) for n in range(20)}
    adds: list[Action] = [
        Add(
            path=f"data/time_day={DAY[0]}/{ME.ingester_id}-{seq:032x}.parquet",
            kind="persist",
            rows=100_000,
            bytes=4_000_000,
            spec_id=1,
            values=DAY,
            stats=stats,
            writer=ME.ingester_id,
            epoch=ME.epoch,
            first_seq=seq,
            last_seq=seq,
            schema_id=1,
            at="2026-11-21T00:00:00+00:00",
        )
        for seq in range(first_seq, first_seq + files)
    ]
    return [*adds, Applied(ME.ingester_id, ME.epoch, 1, DAY, first_seq + files - 1)]


def commits(folder: str, live_files: int, repeats: int = 60) -> None:
    """One line: a commit of one file into a table that has so many."""
    store = FaultyStore(open_store(f"file://{folder}"))
    manifest = Manifest(store, "measure", f"live-{live_files}")
    state = commit(manifest, None, Proposal(DEFINITION), ME)
    state = commit(manifest, state, Proposal(wide(1, live_files)), ME)
    started = perf_counter()
    state = write_snapshot(manifest, state)
    snapshot_s = perf_counter() - started
    started = perf_counter()
    assert Manifest(store, "measure", f"live-{live_files}").load() == state
    open_s = perf_counter() - started
    store.calls.clear()
    store.bytes_put = 0
    took = []
    for n in range(repeats):
        proposal = Proposal(wide(live_files + n + 1))
        started = perf_counter()
        state = commit(manifest, state, proposal, ME)
        took.append(perf_counter() - started)
    objects = (store.calls["put"] + store.calls["create"]) / repeats
    print(
        f"{live_files:>10,} {objects:>8.1f} {store.bytes_put / repeats:>8.0f}"
        f" {median(took) * 1e3:>10.2f} {max(took) * 1e3:>10.2f}"
        f" {snapshot_s * 1e3:>12.1f} {open_s * 1e3:>9.1f}"
    )


def opening(folder: str, versions: int, snapshots: bool) -> None:
    """One line: opening a table of so many versions, one file each."""
    store = FaultyStore(open_store(f"file://{folder}"))
    name = f"versions-{versions}-{snapshots}"
    manifest = Manifest(store, "measure", name)
    state: TableState = commit(manifest, None, Proposal(DEFINITION), ME)
    started = perf_counter()
    for seq in range(1, versions):
        state = commit(manifest, state, Proposal(wide(seq)), ME)
        if snapshots and snapshot_due(state):
            state = write_snapshot(manifest, state)
    made_s = perf_counter() - started
    store.calls.clear()
    started = perf_counter()
    assert Manifest(store, "measure", name).load() == state
    open_s = perf_counter() - started
    requests = sum(store.calls.values())
    started = perf_counter()
    assert manifest.refresh(state) is state
    refresh_s = perf_counter() - started
    print(
        f"{versions:>10,} {'yes' if snapshots else 'no':>9} {open_s * 1e3:>9.1f} {requests:>9}"
        f" {refresh_s * 1e6:>11.0f} {(versions - 1) / made_s:>10.0f}"
    )


def main(folder: str) -> None:
    """Print both tables."""
    print("live files  objects    bytes  commit p50  max (ms)  snapshot (ms)  open (ms)")
    for live_files in (10, 1_000, 10_000, 100_000):
        commits(folder, live_files)
    print("\n  versions snapshots open (ms)  requests  refresh(us)  commits/s")
    for versions, snapshots in ((10, False), (1_000, False), (1_000, True)):
        opening(folder, versions, snapshots)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as scratch:
            main(scratch)
