"""The plan of a compaction: small files that lie together become few of the target size.

Law of this file: pure, and a function of the state alone. A group has the rows of its files and no
others, so groups are independent of each other, and of what daemons add. It lies in one partition,
but for files that an earlier partition spec laid out: they are put together by where their rows
will go, whatever their size. Others that are large enough stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from persist.manifest import Add, PartitionKey, TableState
from persist.table import TableDefinition

LARGE_ENOUGH = 0.75
"""The share of the target from which on a file is left as it is."""
MIN_FILES = 2


class FileGroup(NamedTuple):
    """Files, those of one partition in the order in which they were committed.

    Attributes:
        partition: The key that all of them have; None where an earlier spec laid them out.
    """

    partition: PartitionKey | None
    files: tuple[Add, ...]

    @property
    def bytes(self) -> int:
        """The bytes of the files together."""
        return sum(add.bytes for add in self.files)

    @property
    def rows(self) -> int:
        """The rows of the files together."""
        return sum(add.rows for add in self.files)


RowSelection = Callable[[Add], bool]


def plan_compaction(
    state: TableState, target_bytes: int, wanted: RowSelection = lambda add: True
) -> list[FileGroup]:
    """Groups of at least two files, together not larger than the target where they can be.

    Files of an earlier partition spec are in groups in any case.
    """
    definition = TableDefinition.of_state(state)

    def small(add: Add) -> bool:
        fits = add.bytes < LARGE_ENOUGH * target_bytes or not definition.lies_as_now(add.spec_id)
        return fits and wanted(add)

    groups = _groups(state, target_bytes, small)
    return [g for g in groups if len(g.files) >= MIN_FILES or g.partition is None]


def plan_move(
    state: TableState, target_bytes: int, wanted: RowSelection = lambda add: True
) -> list[FileGroup]:
    """Groups of the files of earlier partition specs."""
    return [group for group in _groups(state, target_bytes, wanted) if group.partition is None]


def plan_rewrite(
    state: TableState, target_bytes: int, wanted: RowSelection = lambda add: True
) -> list[FileGroup]:
    """Groups of all files, large ones alone."""
    return _groups(state, target_bytes, wanted)


def _groups(state: TableState, target_bytes: int, wanted: RowSelection) -> list[FileGroup]:
    definition = TableDefinition.of_state(state)
    groups, moving = [], []
    for key, files in sorted(state.partitions.items(), key=lambda item: repr(item[0])):
        chosen = [add for add in files if wanted(add)]
        if definition.lies_as_now(key[0]):
            packed = _packed(chosen, target_bytes)
            groups += [FileGroup(key, group) for group in packed]
        else:
            moving += chosen
    packed = _packed(moving, target_bytes, definition.spec.columns)
    return groups + [FileGroup(None, group) for group in packed]


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


def _packed(
    files: Sequence[Add], target_bytes: int, columns: Sequence[str] = ()
) -> list[tuple[Add, ...]]:
    """Groups of files whose rows are neighbours by these columns, each up to the target's size."""
    place = {add.path: number for number, add in enumerate(files)}
    groups: list[list[Add]] = []
    size = 0
    for add in sorted(files, key=lambda add: (_begin(add, columns), place[add.path])):
        if not groups or size + add.bytes > target_bytes:
            groups.append([])
            size = 0
        groups[-1].append(add)
        size += add.bytes
    # Back in the order of commits, in which later rows replace earlier ones.
    return [tuple(sorted(group, key=lambda add: place[add.path])) for group in groups]


def _begin(add: Add, columns: Sequence[str]) -> tuple[str, str, float]:
    """The place where a file's rows begin, by the first bound that is known."""
    first = [(name, add.stats[name]) for name in columns if name in add.stats]
    for name, stats in [*first, *sorted(add.stats.items())]:
        if isinstance(stats.min, str):
            return (name, stats.min, 0.0)
        if stats.min is not None:
            return (name, "", float(stats.min))
    return ("", "", 0.0)
