"""A partition's files read as a list and are cheap to append to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from persist.manifest.state import FileRuns
from tests.persist.manifest.samples import add

FILES = [add(f"data/{number}.parquet", number) for number in range(200)]


@given(st.lists(st.integers(0, 9), max_size=20), st.sets(st.integers(0, 120)))
def test_file_runs_equal_a_list_with_the_same_additions_and_removals(
    sizes: list[int], removed: set[int]
) -> None:
    runs, model = FileRuns(), list[object]()
    for size in sizes:
        added = FILES[len(model) : len(model) + size]
        before, copy = runs, tuple(runs)
        runs = runs.and_then(added)
        model += added
        assert tuple(before) == copy
        assert list(runs) == model
        assert len(runs) == len(model)
        assert bool(runs) == bool(model)
    assert runs == tuple(model)
    assert runs == FileRuns().and_then(FILES[: len(model)])
    assert runs != FileRuns().and_then(FILES[: len(model) + 1])
    left = [file for number, file in enumerate(FILES[: len(model)]) if number not in removed]
    assert list(runs.without({FILES[number].path for number in removed})) == left
    assert [runs[at] for at in range(len(runs))] == model
    assert list(runs[1:3]) == model[1:3]


def test_adding_one_file_after_another_copies_each_a_few_times() -> None:
    runs, copied = FileRuns(), 0
    for file in FILES:
        before = {id(run) for run in runs.runs}
        runs = runs.and_then([file])
        copied += sum(len(run) for run in runs.runs if id(run) not in before)
    assert len(runs.runs) <= 9
    assert copied <= 9 * len(FILES)
