"""Which manifests a snapshot lists: new ones, kept ones, and merged ones. Pure.

A new manifest absorbs the preceding one of its partition spec while that has fewer than twice its
files, as ``FileRuns`` in the manifest do, so a file's entry is written a logarithmic number of
times and a commit writes about as much however many files the table has. A full manifest is not
merged again. A manifest that lists removed files is written again, with these as deleted, and may
absorb its predecessor too::

    add 1, add 1, add 1, add 1      [a]   [a b]   [a b][c]   [a b c d]

A manifest without a file of the table is dropped by the next snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import repeat

from persist.publish.iceberg.manifests import (
    ADDED,
    DELETED,
    EXISTING,
    EncodedManifest,
    Entry,
    ManifestFile,
    may_list,
)
from persist.publish.steps import OpenFile, Step

FULL, FULL_KEYED = 8_000, 1_000
"""Files of a manifest that is not merged again. Commits to a keyed table remove files, and each
removal writes a manifest again.
"""


@dataclass(slots=True)
class Held:
    """A manifest that the newest snapshot lists.

    Attributes:
        added_in: the snapshot that added each file, by ``Add.path``; None until it is needed.
        encoded: its content, if this process has written it.
    """

    file: ManifestFile
    added_in: dict[str, int] | None = None
    encoded: EncodedManifest | None = None


@dataclass(frozen=True, slots=True)
class Pending:
    """A manifest to write."""

    spec_id: int
    entries: list[Entry]

    @property
    def live(self) -> int:
        """The files that are part of the table."""
        return sum(entry.status != DELETED for entry in self.entries)

    def ordered(self) -> Pending:
        """The same manifest, in which removed files come last."""
        return Pending(self.spec_id, sorted(self.entries, key=lambda e: e.status == DELETED))


Load = Callable[[Held], dict[str, int]]
"""The files of a manifest and the snapshot that added each."""


class Mismatch(Exception):
    """The published manifests do not list what the table had at the step before."""


def full(step: Step) -> int:
    """The files of a full manifest of this table."""
    return FULL_KEYED if step.definition.keyed else FULL


def next_manifests(held: Iterable[Held], step: Step, load: Load) -> list[Held | Pending]:
    """The manifests of the snapshot of a step, by partition spec, in the order of their files.

    Args:
        held: the manifests of the snapshot before it.

    Raises:
        Mismatch: they are not those of the step before.
    """
    stacks: dict[int, _Stack] = {}

    def push(spec_id: int, manifest: Held | Pending) -> None:
        if spec_id not in stacks:
            stacks[spec_id] = _Stack(step, load)
        stacks[spec_id].push(manifest)

    kept = [each for each in held if each.file.live and not step.complete]
    removed = {file.path: file for file in step.removed}
    # The newest first: compaction removes young files, and then older manifests are not read.
    gone = [_taken_out(each, removed, step, load) for each in reversed(kept)]
    if removed:
        raise Mismatch(f"{next(iter(removed))} is removed, but no manifest lists it")
    for each, files_gone in zip(kept, reversed(gone), strict=True):
        spec_id = each.file.spec_id
        if files_gone:
            push(spec_id, Pending(spec_id, _entries(each, step, load, files_gone)))
        else:
            push(spec_id, each)
    for spec_id, files in _by_spec(step.added).items():
        most = full(step)
        for first in range(0, len(files), most):
            added = [Entry(ADDED, step.place.number, f) for f in files[first : first + most]]
            push(spec_id, Pending(spec_id, added))
    planned = [each for spec_id in sorted(stacks) for each in stacks[spec_id].manifests]
    return [each.ordered() if isinstance(each, Pending) else each for each in planned]


def _by_spec(files: Iterable[OpenFile]) -> dict[int, list[OpenFile]]:
    found: dict[int, list[OpenFile]] = {}
    for file in files:
        found.setdefault(file.add.spec_id, []).append(file)
    return found


def _taken_out(
    held: Held, removed: dict[str, OpenFile], step: Step, load: Load
) -> dict[str, OpenFile]:
    """The files of ``removed`` that the manifest lists, by ``Add.path``; they are taken out."""
    # A manifest that was not read yet is only read if it may list one of the files.
    if held.added_in is None and not any(
        may_list(held.file, file.add, step.definition) for file in removed.values()
    ):
        return {}
    added_in = load(held)
    gone = {file.add.path: file for file in removed.values() if file.add.path in added_in}
    for file in gone.values():
        del removed[file.path]
    return gone


def _entries(held: Held, step: Step, load: Load, gone: Mapping[str, OpenFile]) -> list[Entry]:
    """The entries of a manifest in the next one."""
    added_in, files = load(held), step.state.files
    encoded: Iterable[bytes | None] = repeat(None)
    if held.encoded is not None:
        encoded = held.encoded.files(added_in.values())
    entries = []
    for (path, number), data in zip(added_in.items(), encoded, strict=False):
        if path in gone:
            entries.append(Entry(DELETED, number, gone[path], data))
        elif (add := files.get(path)) is not None:
            entries.append(Entry(EXISTING, number, OpenFile(f"{step.root}/{path}", add), data))
        else:
            raise Mismatch(f"{step.root}/{path} is published, but not in the table")
    return entries


class _Stack:
    """The manifests of one partition spec, merged as they come."""

    def __init__(self, step: Step, load: Load) -> None:
        self.manifests: list[Held | Pending] = []
        self._step, self._load, self._full = step, load, full(step)

    def push(self, manifest: Held | Pending) -> None:
        while isinstance(manifest, Pending) and self.manifests:
            before, live = _live(self.manifests[-1]), manifest.live
            if before >= 2 * live or max(before, live) >= self._full:
                break
            entries = self._entries(self.manifests.pop())
            manifest = Pending(manifest.spec_id, [*entries, *manifest.entries])
        self.manifests.append(manifest)

    def _entries(self, manifest: Held | Pending) -> list[Entry]:
        if isinstance(manifest, Pending):
            return manifest.entries
        return _entries(manifest, self._step, self._load, {})


def _live(manifest: Held | Pending) -> int:
    return manifest.live if isinstance(manifest, Pending) else manifest.file.live
