"""The plan of a compaction: which files are rewritten together.

Small files of one partition are grouped up to the target size; larger files stay. Files that an
earlier partition spec laid out are grouped by where their rows will go, whatever their size. A plan
is a function of the table's state alone, so groups do not depend on each other or on what daemons
add meanwhile (``tests/persist/compaction/test_plan.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from persist.manifest import Add, PartitionKey, TableState
from persist.table import TableDefinition

TARGET_FILE_BYTES = 128 << 20
LARGE_ENOUGH = 0.75
"""A file of at least this share of the target size is left unchanged."""
MIN_FILES = 2


class FileGroup(NamedTuple):
    """Files to be rewritten together, in commit order.

    Attributes:
        partition: Their common partition; None if an earlier partition spec laid them out.
    """

    partition: PartitionKey | None
    files: tuple[Add, ...]

    @property
    def bytes(self) -> int:
        return sum(add.bytes for add in self.files)

    @property
    def rows(self) -> int:
        return sum(add.rows for add in self.files)


FileSelection = Callable[[Add], bool]
Planner = Callable[[TableState, int, FileSelection], list[FileGroup]]
"""Returns the groups of a state for a target size, of the selected files."""


def plan_compaction(
    state: TableState, target_bytes: int, wanted: FileSelection = lambda add: True
) -> list[FileGroup]:
    """Groups of at least two files, if possible not larger than the target.

    Files of an earlier partition spec are always grouped.
    """
    definition = TableDefinition.of_state(state)

    def small(add: Add) -> bool:
        fits = add.bytes < LARGE_ENOUGH * target_bytes or not definition.has_current_layout(
            add.spec_id
        )
        return fits and wanted(add)

    groups = _groups(state, target_bytes, small)
    return [g for g in groups if len(g.files) >= MIN_FILES or g.partition is None]


def plan_move(
    state: TableState, target_bytes: int, wanted: FileSelection = lambda add: True
) -> list[FileGroup]:
    """Groups of files of earlier partition specs only."""
    return [group for group in _groups(state, target_bytes, wanted) if group.partition is None]


def plan_rewrite(
    state: TableState, target_bytes: int, wanted: FileSelection = lambda add: True
) -> list[FileGroup]:
    """Groups of all files; a large file is a group of its own."""
    return _groups(state, target_bytes, wanted)


Written = Callable[[PartitionKey, Sequence[Add]], bool]
"""Whether a partition, which has these files, is still written to."""
TIER_FILES, TIER_SHARE = 8, 4
QUIET_SHARE = 2


def plan_tiers(state: TableState, target_bytes: int, written: Written) -> list[FileGroup]:
    """Groups whose rewriting pays, for a compaction that runs again and again.

    In a partition that is still written to, a group has at least :data:`TIER_FILES` files, and none
    of them more than a quarter of its bytes. Each rewrite therefore takes a row to a file of at
    least four times the size: on its way from 128 KiB to 128 MiB it is rewritten at most five
    times, and once more into a file of nearly the target size. In a partition without writes two
    files are enough, none of them with more than half of the bytes.

    Partitions of a keyed table that are written to are left out: flushes rewrite their files, and
    merge small neighbours. So are files of earlier partition specs.
    """
    definition = TableDefinition.of_state(state)
    groups = []
    for key, files in sorted(state.partitions.items(), key=lambda item: repr(item[0])):
        small = [add for add in files if add.bytes < LARGE_ENOUGH * target_bytes]
        if len(small) < MIN_FILES or not definition.has_current_layout(key[0]):
            continue
        busy = written(key, files)
        if busy and definition.keyed:
            continue
        least, share = (TIER_FILES, TIER_SHARE) if busy else (MIN_FILES, QUIET_SHARE)
        chosen = {add.path for add in _tier(small, least, share)}
        for packed in _packed([add for add in small if add.path in chosen], target_bytes):
            group = FileGroup(key, packed)
            full = len(packed) >= MIN_FILES and group.bytes >= LARGE_ENOUGH * target_bytes
            if full or len(_tier(packed, least, share)) == len(packed):
                groups.append(group)
    return groups


def _tier(files: Sequence[Add], least: int, share: int) -> list[Add]:
    """The most files, smallest first, of which none has more than one part in ``share`` of the
    bytes; none if they are fewer than ``least``.
    """
    rising = sorted(files, key=lambda add: add.bytes)
    total, count = 0, 0
    for number, add in enumerate(rising, 1):
        total += add.bytes
        if number >= least and add.bytes * share <= total:
            count = number
    return rising[:count]


def _groups(state: TableState, target_bytes: int, wanted: FileSelection) -> list[FileGroup]:
    definition = TableDefinition.of_state(state)
    groups, moving = [], []
    for key, files in sorted(state.partitions.items(), key=lambda item: repr(item[0])):
        chosen = [add for add in files if wanted(add)]
        if definition.has_current_layout(key[0]):
            packed = _packed(chosen, target_bytes)
            groups += [FileGroup(key, group) for group in packed]
        else:
            moving += chosen
    packed = _packed(moving, target_bytes, definition.spec.columns)
    return groups + [FileGroup(None, group) for group in packed]


def waves(groups: Sequence[FileGroup], most_bytes: int) -> Iterable[list[FileGroup]]:
    """The groups, divided into commits of at most ``most_bytes``, or one group."""
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
    """Groups of neighbouring files by these columns, each up to the target size."""
    place = {add.path: number for number, add in enumerate(files)}
    groups: list[list[Add]] = []
    size = 0
    for add in sorted(files, key=lambda add: (_begin(add, columns), place[add.path])):
        if not groups or size + add.bytes > target_bytes:
            groups.append([])
            size = 0
        groups[-1].append(add)
        size += add.bytes
    # In commit order again, so that later rows replace earlier ones.
    return [tuple(sorted(group, key=lambda add: place[add.path])) for group in groups]


def _begin(add: Add, columns: Sequence[str]) -> tuple[str, str, float]:
    """A sort key: the lower bound of the first column that has one."""
    first = [(name, add.stats[name]) for name in columns if name in add.stats]
    for name, stats in [*first, *sorted(add.stats.items())]:
        if isinstance(stats.min, str):
            return (name, stats.min, 0.0)
        if stats.min is not None:
            return (name, "", float(stats.min))
    return ("", "", 0.0)
