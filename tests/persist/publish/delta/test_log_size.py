"""Checkpoints keep the log short to read and cheap to write; clean-up keeps what versions need."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import deltalake
import pytest
from immutables import Map

from persist.manifest import Add
from persist.publish.delta import DeltaTable
from persist.publish.steps import OpenFile, Place, Step
from persist.store import open_store
from tests.drivers.memory_store import MemoryStore
from tests.persist.publish.delta.reading import check_read, complete, log_names, root_of
from tests.persist.publish.tables import BuiltTable, sample


class CountingStore(MemoryStore):
    """Counts the bytes that are written."""

    written = 0

    def _put(self, path: str, data: object, *, only_if_absent: bool = False):  # type: ignore[no-untyped-def]
        self.written += memoryview(data).nbytes  # type: ignore[arg-type]
        return super()._put(path, data, only_if_absent=only_if_absent)


def small_table(store: MemoryStore) -> tuple[Step, Add]:
    """The last step of a small table, and one of its files."""
    table = BuiltTable(store, sample(0, 1).select(["n", "time", "host", "f64"]).schema)
    table.append(sample(0, 8).select(table.definition.schema.names))
    step = table.steps()[-1]
    return step, next(iter(step.state.files.values()))


def with_files(step: Step, add: Add, first: int, count: int) -> Step:
    """The next version, to which files were added."""
    adds = [
        replace_path(add, f"data/time_day=2026-11-{n % 28 + 1:02d}/{n * 7919:032x}.parquet")
        for n in range(first, first + count)
    ]
    files = (
        Map({**step.state.files, **{one.path: one for one in adds}})
        if count > 1
        else (step.state.files.set(adds[0].path, adds[0]))
    )
    number = step.place.number + 1
    return replace(
        step,
        place=Place(number, 1, number, f"{number:032x}"),
        added=tuple(OpenFile(f"v1/{one.path}", one) for one in adds),
        state=replace(step.state, files=files),
        complete=False,
    )


def replace_path(add: Add, path: str) -> Add:
    values = {name: getattr(add, name) for name in add.__struct_fields__}
    return Add(**{**values, "path": path})


def bytes_per_commit(files: int, commits: int = 400) -> float:
    """Bytes of log for one more file, in a table with so many."""
    store = CountingStore()
    step, add = small_table(store)
    step = with_files(step, add, 0, files)
    published = DeltaTable(store, "ns", "t")
    published.publish([complete(step)], retain_s=0)
    before = store.written
    for n in range(commits):
        step = with_files(step, add, files + n, 1)
        published.publish([step], retain_s=0)
    return (store.written - before) / commits


def test_bytes_per_commit_do_not_grow_with_the_table() -> None:
    small, large = bytes_per_commit(100), bytes_per_commit(20_000)
    assert large < 1.5 * small, (small, large)


def test_a_reader_reads_few_commits(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    table = BuiltTable(store, sample().schema)
    published = DeltaTable(store, "ns", "t")
    for n in range(45):
        table.append(sample(n, 1))
    for step in table.steps():
        published.publish([step], retain_s=0)
    numbers = [int(name[:20]) for name in log_names(store) if "checkpoint.p" in name]
    gaps = [b - a for a, b in pairwise(numbers)]
    assert len(gaps) >= 2 and all(10 <= gap <= 20 for gap in gaps)
    for step in table.steps()[::7]:
        check_read("deltalake", root_of(store), step, table.rows(step))
    head = DeltaTable(store, "ns", "t").head()
    assert head is not None and head.place == table.steps()[-1].place


def aged(root: str, **ages: float) -> None:
    """Set how old the objects of these versions are: ``v12=60`` means 60 s."""
    now = time.time()
    for path in Path(root, "_delta_log").iterdir():
        age = ages.get(f"v{int(path.name[:20])}") if path.name[0] == "0" else None
        if age is not None:
            os.utime(path, (now - age, now - age))


def test_clean_up_keeps_what_kept_versions_need(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    table = BuiltTable(store, sample().schema)
    for n in range(45):
        table.append(sample(n, 1))
    published = DeltaTable(store, "ns", "t")
    published.publish(table.steps(), retain_s=0)
    aged(root_of(store), **{f"v{n}": (60 - n) * 100 for n in range(1, 47)})
    foreign = Path(root_of(store), "_delta_log", f"{3:020d}.crc")
    foreign.write_bytes(b"theirs")
    os.utime(foreign, (0, 0))
    assert published.clean_up(retain_s=86400, grace_s=0) == 0
    assert published.clean_up(retain_s=0, grace_s=86400) == 0
    # Version 30 is 3000 s old, and was current until version 31 came 2900 s ago.
    deleted = published.clean_up(retain_s=2950, grace_s=10)
    assert foreign.read_bytes() == b"theirs"
    numbers = sorted({int(n[:20]) for n in log_names(store) if n[0] == "0" and ".crc" not in n})
    assert deleted > 20 and numbers == list(range(numbers[0], 47)) and 15 < numbers[0] <= 30
    for step in table.steps(29)[::4]:
        check_read("deltalake", root_of(store), step, table.rows(step))
    assert published.clean_up(retain_s=2950, grace_s=10) == 0
    published.clean_up(retain_s=0, grace_s=0)
    for one in (published, DeltaTable(store, "ns", "t")):
        table.append(sample(100 + len(table.steps()), 1))
        one.publish(table.steps()[-1:], retain_s=0)
        check_read("deltalake", root_of(store), table.steps()[-1], table.rows())


@pytest.mark.parametrize(
    "hint", [None, b"{", b'{"version":1,"size":3}', b'{"version":99,"size":3}']
)
def test_the_hint_is_only_a_hint(hint: bytes | None, tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    table = BuiltTable(store, sample().schema)
    for n in range(25):
        table.append(sample(n, 1))
    published = DeltaTable(store, "ns", "t")
    head = published.publish(table.steps(), retain_s=0)
    path = "ns/t/_delta_log/_last_checkpoint"
    if hint is None:
        store.delete(path)
    else:
        store.put(path, hint)
    assert DeltaTable(store, "ns", "t").head() == head
    aged(root_of(store), **{f"v{n}": 100 for n in range(1, 26)})
    assert published.clean_up(retain_s=10, grace_s=10) > 0
    if hint is None or b"1" in hint:
        assert "_last_checkpoint" not in log_names(store)
        assert deltalake.DeltaTable(root_of(store)).version() == 26
    assert DeltaTable(store, "ns", "t").head() == head
