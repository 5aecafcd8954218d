"""Tasks in this process stay within their memory: groups are cut, or refused with the reason."""

from __future__ import annotations

import pyarrow as pa
import pytest

from persist.compaction import (
    CompactionReport,
    FileGroup,
    InProcess,
    RewriteTask,
    Rewriting,
    plan_compaction,
)
from persist.compaction.in_process import LEAST_SHARE
from persist.manifest import Manifest, TableState
from persist.parquet.copy_on_write import OlderRows
from tests.drivers.memory_store import MemoryStore
from tests.persist.publish.tables import BuiltTable

SCHEMA = pa.schema({"n": pa.int64(), "day": pa.string()})
ROW = 8 + 4 + 1


def built(counts: list[int]) -> BuiltTable:
    """A table with a file of so many rows for each number."""
    table = BuiltTable(MemoryStore(), SCHEMA, ["identity(day)"])
    for count in counts:
        table.append(pa.table({"n": [*range(count)], "day": ["a"] * count}, schema=SCHEMA))
    return table


def compacted(table: BuiltTable, rows: int) -> tuple[CompactionReport, TableState]:
    """Compact with memory for about so many rows at once."""
    runner = InProcess(table.store, LEAST_SHARE * rows * ROW)
    report = Rewriting(table.manifest, runner, 1 << 20).run([plan_compaction])
    return report, table.manifest.load()


def test_a_group_that_does_not_fit_is_cut() -> None:
    report, state = compacted(built([40] * 7), 105)
    assert (report.files_before, report.files_after, report.left) == (6, 3, 0)
    assert (report.refused, report.commits) == (None, 1)
    assert sorted(add.rows for add in state.files.values()) == [40, 80, 80, 80]


def test_a_file_that_does_not_fit_is_named_and_the_rest_is_merged() -> None:
    report, state = compacted(built([40, 40, 400, 40, 40]), 105)
    assert sorted(add.rows for add in state.files.values()) == [80, 80, 400]
    assert report.left == 1 and report.refused is not None
    assert "a file of partition day_key=a would exceed" in report.refused
    assert "give more memory, or choose a smaller size" in report.text()


def test_files_of_which_no_two_fit_together_are_left() -> None:
    report, state = compacted(built([80] * 3), 105)
    assert (report.files_before, report.left, state.file_count) == (0, 1, 3)
    assert "3 files of partition day_key=a" in report.text()
    again, _ = compacted(built([40]), 105)
    assert again.text() == "ns/t: nothing to do at version 2"


def test_a_single_file_of_an_earlier_layout_moves() -> None:
    table = built([40])
    table.partition_by()
    report, state = compacted(table, 1000)
    assert (report.files_before, report.files_after, report.rows) == (1, 1, 40)
    assert {add.spec_id for add in state.files.values()} == {table.definition.spec_id}


def test_memory_is_counted_while_a_group_is_rewritten_and_a_pause_ends_it() -> None:
    table, held, seen = built([40] * 4), OlderRows(), list[int]()

    class Stopped(Exception):
        pass

    def pause() -> None:
        seen.append(held.nbytes)
        if len(seen) == 3:
            raise Stopped

    runner = InProcess(table.store, 1 << 20, pause, held)
    task = RewriteTask(table.manifest.root, table.definition, 1 << 20, "test")
    state = table.manifest.load()
    [group] = plan_compaction(state, 1 << 20)
    with pytest.raises(Stopped):
        runner(task, [group])
    assert seen == [1 << 20] * 3
    assert held.nbytes == 0
    assert Manifest(table.store, "ns", "t").load().files == state.files


def test_a_value_that_no_folder_can_have_is_refused_and_the_others_are_rewritten() -> None:
    table = built([5, 5])
    long = pa.table({"n": [1], "day": ["x" * 300]}, schema=SCHEMA)
    table.partition_by()
    table.append(long)
    table.append(long)
    table.partition_by("identity(day)")
    before = FileGroup(None, tuple(table.state.files.values()))
    report, state = compacted(table, 10_000)
    assert report.refused is not None and "at most 180 are possible" in report.refused
    assert len(state.files) <= len(before.files)
