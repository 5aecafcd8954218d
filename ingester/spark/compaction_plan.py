"""Which files of a table become which: small ones that lie together become few of the target size.

Law of this file: pure, and a function of the state alone. A group lies in one partition and has the
rows of its files and no others, so groups are independent of each other, and of what daemons add.
Files that are large enough stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from persist.manifest import Add, PartitionKey, TableState

LARGE_ENOUGH = 0.75
"""Of the target: a file that is so large is left as it is."""
MIN_FILES = 2


class FileGroup(NamedTuple):
    """Files of one partition, in the order in which they were committed."""

    partition: PartitionKey
    files: tuple[Add, ...]

    @property
    def bytes(self) -> int:
        """Of the files together."""
        return sum(add.bytes for add in self.files)

    @property
    def rows(self) -> int:
        """Of the files together."""
        return sum(add.rows for add in self.files)


Wanted = Callable[[Add], bool]


def plan_compaction(
    state: TableState, target_bytes: int, wanted: Wanted = lambda add: True
) -> list[FileGroup]:
    """Groups of at least two files, together not larger than the target where they can be.

    Args:
        wanted: Which files are looked at.
    """
    groups = []
    for key, files in sorted(state.partitions.items(), key=lambda item: repr(item[0])):
        small = [add for add in files if add.bytes < LARGE_ENOUGH * target_bytes and wanted(add)]
        for packed in _packed(small, target_bytes):
            if len(packed) >= MIN_FILES:
                groups.append(FileGroup(key, packed))
    return groups


def plan_rewrite(
    state: TableState, target_bytes: int, wanted: Wanted = lambda add: True
) -> list[FileGroup]:
    """Groups of all files, large ones alone."""
    groups = []
    for key, files in sorted(state.partitions.items(), key=lambda item: repr(item[0])):
        packed = _packed([add for add in files if wanted(add)], target_bytes)
        groups += [FileGroup(key, group) for group in packed]
    return groups


def waves(groups: Sequence[FileGroup], most_bytes: int) -> Iterable[list[FileGroup]]:
    """The groups in commits: each of at least one group, and of no more bytes than this."""
    wave: list[FileGroup] = []
    for group in groups:
        if wave and sum(one.bytes for one in wave) + group.bytes > most_bytes:
            yield wave
            wave = []
        wave.append(group)
    if wave:
        yield wave


def _packed(files: Sequence[Add], target_bytes: int) -> list[tuple[Add, ...]]:
    """Neighbours in the order of their rows, together up to the target."""
    place = {add.path: number for number, add in enumerate(files)}
    groups: list[list[Add]] = []
    size = 0
    for add in sorted(files, key=lambda add: (_begin(add), place[add.path])):
        if not groups or size + add.bytes > target_bytes:
            groups.append([])
            size = 0
        groups[-1].append(add)
        size += add.bytes
    # Back in the order of commits, in which later rows replace earlier ones.
    return [tuple(sorted(group, key=lambda add: place[add.path])) for group in groups]


def _begin(add: Add) -> tuple[str, str, float]:
    """Where a file's rows begin, by the first bound that is known; columns by their names."""
    for name, stats in sorted(add.stats.items()):
        if isinstance(stats.min, str):
            return (name, stats.min, 0.0)
        if stats.min is not None:
            return (name, "", float(stats.min))
    return ("", "", 0.0)
