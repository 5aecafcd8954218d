"""Compaction groups stay within a partition, are full, and contain each file at most once."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from immutables import Map
from msgspec import structs

from persist.compaction.plan import (
    LARGE_ENOUGH,
    FileGroup,
    plan_compaction,
    plan_rewrite,
    plan_tiers,
    waves,
)
from persist.manifest import Add, ColumnStats, PartitionKey, Spec, TableState
from persist.manifest.state import FileRuns
from persist.partitioning import PartitionSpec
from persist.table import TableDefinition

TARGET = 100


def file(number: int, size: int, day: str, low: int, spec_id: int = 2) -> Add:
    return Add(
        path=f"data/{number:04d}.parquet",
        kind="persist",
        rows=size,
        bytes=size,
        spec_id=spec_id,
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
    specs = {number: Spec(number, fields) for number, fields in SPECS.items()}
    definition = TableDefinition(pa.schema({"day": pa.string(), "x": pa.int64()}), PartitionSpec())
    return TableState(
        files=Map({add.path: add for add in files}),
        partitions=Map(runs),
        current_schema=definition.schema_action(),
        specs=Map(specs),
        current_spec=specs[2],
    )


SPECS = {1: ("bucket(2, day)",), 2: ("identity(day)",)}
FILES = st.lists(
    st.tuples(
        st.integers(1, 150), st.sampled_from("ab"), st.integers(0, 50), st.sampled_from([1, 2, 2])
    ),
    max_size=30,
).map(lambda drawn: [file(number, *one) for number, one in enumerate(drawn)])


@given(FILES)
def test_groups_are_of_small_files_of_one_partition_and_as_full_as_can_be(files: list[Add]) -> None:
    groups = plan_compaction(state_of(files), TARGET)
    taken = [add.path for group in groups for add in group.files]
    assert len(taken) == len(set(taken))
    for group in groups:
        if group.partition is None:
            assert {add.spec_id for add in group.files} == {1}
        else:
            assert len(group.files) >= 2
            assert {add.partition for add in group.files} == {group.partition}
            assert group.partition[0] == 2
            assert all(add.bytes < LARGE_ENOUGH * TARGET for add in group.files)
        assert group.bytes <= TARGET or len(group.files) == 1
        for partition in {add.partition for add in group.files}:
            numbers = [add.first_seq for add in group.files if add.partition == partition]
            assert numbers == sorted(numbers), "not in the order of commits"
    assert {add.path for add in files if add.spec_id == 1} <= set(taken)


@given(FILES)
def test_it_comes_to_an_end(files: list[Add]) -> None:
    """Repeated compaction ends, and each round leaves fewer files.

    Files of an earlier partition spec move once.
    """
    number = len(files)
    while groups := plan_compaction(state_of(files), TARGET):
        gone = {add.path for group in groups for add in group.files}
        kept = [add for add in files if add.path not in gone]
        made = []
        for group in groups:
            first = group.files[0]
            path = f"data/new{number}.parquet"
            made.append(structs.replace(first, path=path, bytes=group.bytes, spec_id=2))
            number += 1
        before, files = files, kept + made
        moved = any(add.spec_id == 1 for add in before)
        assert len(files) <= len(before) if moved else len(files) < len(before)
        assert all(add.spec_id == 2 for add in files)


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


def test_files_of_an_earlier_spec_are_put_together_by_where_their_rows_go() -> None:
    days = [structs.replace(file(n, 40, f"b{n}", 0, 1), stats=days_of(n)) for n in (3, 0, 2, 1)]
    now = file(4, 40, "a", 0)
    groups = plan_rewrite(state_of([*days, now]), TARGET)
    assert [(group.partition, [add.first_seq for add in group.files]) for group in groups] == [
        ((2, ("a",)), [4]),
        (None, [0, 1]),
        (None, [2, 3]),
    ]


def days_of(number: int) -> dict[str, ColumnStats]:
    """Return statistics in which column ``a``, which sorts before ``day``, has the opposite
    order.
    """
    day = ColumnStats(min=f"day {number}", max=f"day {number}", nulls=0)
    return {"a": ColumnStats(min=9 - number, max=9, nulls=0), "day": day}


def streamed(flushes: list[tuple[int, int]], target: int) -> tuple[list[Add], float]:
    """The files after these flushes (bytes, place), with a compaction after each.

    Also returns the bytes that compactions wrote, divided by those of the flushes.
    """
    files: list[Add] = []
    rewritten = 0
    for number, (size, low) in enumerate(flushes):
        files.append(file(number, size, "a", low))
        for group in plan_tiers(state_of(files), target, lambda key, files: True):
            gone = {add.path for add in group.files}
            made = structs.replace(
                group.files[0], path=f"{group.files[0].path}x", bytes=group.bytes
            )
            files = [add for add in files if add.path not in gone] + [made]
            rewritten += group.bytes
    return files, rewritten / sum(size for size, _ in flushes)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 12), st.randoms(use_true_random=False))
def test_a_partition_that_is_written_to_is_not_rewritten_again_and_again(
    spread: int, random: Random
) -> None:
    target = 1024
    flushes = [(random.randint(1, spread), random.randint(0, 50)) for _ in range(400)]
    files, times = streamed(flushes, target)
    assert times <= 6  # the logarithm of 1024 to the base of 4, and once to a full file
    assert sum(add.bytes < LARGE_ENOUGH * target for add in files) <= 40


def test_a_partition_without_writes_is_merged_unless_one_file_has_most_of_it() -> None:
    def merged(*sizes: int) -> list[list[int]]:
        files = [file(number, size, "a", number) for number, size in enumerate(sizes)]
        groups = plan_tiers(state_of(files), TARGET, lambda key, files: False)
        return [[add.bytes for add in group.files] for group in groups]

    assert merged(20, 20) == [[20, 20]]
    assert merged(30, 10) == merged(50) == merged(80, 90) == []
    assert merged(50, 10, 10, 10) == [[10, 10, 10]]
    assert merged(30, 30, 30, 30, 30) == [[30, 30, 30], [30, 30]]


def test_a_keyed_partition_is_left_to_its_flushes_while_it_is_written_to() -> None:
    files = [file(number, 5, "a", number) for number in range(20)]
    state = state_of(files)
    keyed = TableDefinition(
        pa.schema([pa.field("day", pa.string(), False), pa.field("x", pa.int64())]),
        PartitionSpec(),
        ("day",),
    )
    keyed_state = replace(
        state,
        current_schema=keyed.schema_action(),
        properties=Map(keyed.properties_action().values),
    )
    assert len(plan_tiers(state, TARGET, lambda key, files: True)) == 1
    assert plan_tiers(keyed_state, TARGET, lambda key, files: True) == []
    assert len(plan_tiers(keyed_state, TARGET, lambda key, files: False)) == 1
