"""Snapshots: when one is due, and how it is written.

Law of this file: a snapshot is only a shorter way to read what is committed. It is written beside
commits and never on their way; when it is late, missing or damaged, reading takes longer and gives
the same.
"""

from __future__ import annotations

from itertools import islice

from persist.manifest.files import encode_changelog, encode_snapshot
from persist.manifest.paths import snapshot_path
from persist.manifest.reading import Manifest
from persist.manifest.state import TableState

AT_THE_LATEST_AFTER = 200
# A small table would get one with almost each commit, because any changelog outweighs half of it.
NOT_BEFORE = 10

_SAMPLE = 32
_APPLIED_BYTES = 150
_FIXED_BYTES = 1_000


def snapshot_due(state: TableState, bytes_since_last: int | None = None) -> bool:
    """Whether to write a snapshot of ``state`` now.

    Args:
        bytes_since_last: Size of the changelogs since the last one; by default what the state
            counted itself.
    """
    versions = len(state.lineage) - 1
    if versions >= AT_THE_LATEST_AFTER:
        return True
    if versions < NOT_BEFORE:
        return False
    since = state.changelog_bytes if bytes_since_last is None else bytes_since_last
    return since * 2 > approximate_bytes(state)


def approximate_bytes(state: TableState) -> int:
    """The size of the state as changelog lines, from a sample of its files."""
    sample = list(islice(state.files.values(), _SAMPLE))
    per_file = len(encode_changelog((), sample)) / len(sample) if sample else 0
    schemas = sum(len(schema.arrow) for schema in state.schemas.values())
    return int(
        per_file * state.file_count + _APPLIED_BYTES * len(state.applied) + schemas + _FIXED_BYTES
    )


def write_snapshot(manifest: Manifest, state: TableState) -> TableState:
    """Write the snapshot of a committed state; returns the state with its lineage cut to that.

    A newer state that one holds by then learns of it through
    ``newer.after_snapshot(state.version, state.uid)``; commits on top of it, and thereby other
    processes, have the shorter lineage from then on.

    Raises:
        ValueError: The state was never committed.
        StoreUnavailable: Nothing is lost; do it later.
    """
    if state.version == 0:
        raise ValueError("a table without a version has no snapshot")
    path = snapshot_path(manifest.folder, state.version, state.uid)
    manifest.store.put(path, encode_snapshot(state))
    return state.after_snapshot(state.version, state.uid)
