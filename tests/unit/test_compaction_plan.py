"""Which files become which: groups within partitions, full, and none of them twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from immutables import Map
from msgspec import structs

from ingester.spark.compaction_plan import (
    LARGE_ENOUGH,
    FileGroup,
    plan_compaction,
    plan_rewrite,
    waves,
)
from persist.manifest import Add, ColumnStats, PartitionKey, TableState
from persist.manifest.runs import FileRuns

TARGET = 100


def file(number: int, size: int, day: str, low: int) -> Add:
    return Add(
        path=f"data/{number:04d}.parquet",
        kind="persist",
        rows=size,
        bytes=size,
        spec_id=1,
        values=(day,),
        stats={"x": ColumnStats(min=low, max=low + 1, nulls=0)},
        writer="w",
        epoch=1,
        first_seq=number,
        last_seq=number,
        schema_id=1,
        at="2026-11-21T12:00:00+00:00",
    )


def state_of(files: list[Add]) -> TableState:
    partitions: dict[PartitionKey, list[Add]] = {}
    for add in files:
        partitions.setdefault(add.partition, []).append(add)
    runs = {key: FileRuns().and_then(adds) for key, adds in partitions.items()}
    return TableState(files=Map({add.path: add for add in files}), partitions=Map(runs))


FILES = st.lists(
    st.tuples(st.integers(1, 150), st.sampled_from("ab"), st.integers(0, 50)), max_size=30
).map(lambda drawn: [file(number, *one) for number, one in enumerate(drawn)])


@given(FILES)
def test_groups_are_of_small_files_of_one_partition_and_as_full_as_can_be(files: list[Add]) -> None:
    groups = plan_compaction(state_of(files), TARGET)
    taken = [add.path for group in groups for add in group.files]
    assert len(taken) == len(set(taken))
    for group in groups:
        assert len(group.files) >= 2
        assert {add.partition for add in group.files} == {group.partition}
        assert all(add.bytes < LARGE_ENOUGH * TARGET for add in group.files)
        assert group.bytes <= TARGET
        numbers = [add.first_seq for add in group.files]
        assert numbers == sorted(numbers), "not in the order of commits"


@given(FILES)
def test_it_comes_to_an_end(files: list[Add]) -> None:
    """Again and again, until there is nothing to do, with fewer files each time."""
    number = len(files)
    while groups := plan_compaction(state_of(files), TARGET):
        gone = {add.path for group in groups for add in group.files}
        kept = [add for add in files if add.path not in gone]
        made = []
        for group in groups:
            first = group.files[0]
            made.append(structs.replace(first, path=f"data/new{number}.parquet", bytes=group.bytes))
            number += 1
        assert len(kept) + len(made) < len(files)
        files = kept + made


@given(FILES, st.integers(1, 400))
def test_a_rewrite_takes_every_file_once_and_waves_keep_the_order(
    files: list[Add], most: int
) -> None:
    groups = plan_rewrite(state_of(files), TARGET)
    assert sorted(add.path for group in groups for add in group.files) == [
        add.path for add in files
    ]
    cut: list[list[FileGroup]] = list(waves(groups, most))
    assert [group for wave in cut for group in wave] == groups
    assert all(sum(one.bytes for one in wave) <= most or len(wave) == 1 for wave in cut)
