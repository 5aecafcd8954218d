"""Any number of publishers, stopped anywhere, publish each version once; others stop them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from persist.publish.delta import DeltaTable
from persist.publish.format import Head
from persist.publish.steps import ForeignCommit, Overtaken, Step
from persist.store import ObjectStore, StoreUnavailable, open_store
from tests.drivers.memory_store import MemoryStore
from tests.persist.publish.delta.reading import (
    check_read,
    commit_lines,
    complete,
    log_names,
    publish_all,
    root_of,
)
from tests.persist.publish.tables import appended, compacted, keyed, sample, switched

LOG = "ns/t/_delta_log/"


class CutStore:
    """A store whose connection breaks once, before or after the call with this number."""

    def __init__(self, store: ObjectStore, cut: int, after: bool) -> None:
        self._store, self._left, self._after = store, cut, after
        self.was_cut = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in ("put", "create", "get", "open", "list", "delete"):
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            self._left -= 1
            if self._left == 0 and not self._after:
                self._cut(name)
            try:
                return found(*arguments, **options)
            finally:
                if self._left == 0:
                    self._cut(name)

        return call

    def _cut(self, name: str) -> None:
        self.was_cut = True
        raise StoreUnavailable(f"cut at {name}")


def catch_up(store: ObjectStore, steps: list[Step]) -> Head:
    """Publish as the driver does: after the head, or the whole table without one."""
    table = DeltaTable(store, "ns", "t")
    head = table.head()
    if head is None:
        return table.publish([complete(steps[-1])], retain_s=0)
    return table.publish([s for s in steps if s.place.number > head.place.number], retain_s=0)


def log_of(store: ObjectStore) -> dict[str, bytes]:
    return {info.path: store.get(info.path) for info in store.list(LOG)}


def test_every_publisher_writes_the_same_bytes(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    steps = switched(store).steps()
    other = MemoryStore()
    DeltaTable(store, "ns", "t").publish(steps, retain_s=0)
    for step in steps:
        DeltaTable(other, "ns", "t").publish([step], retain_s=0)
    assert log_of(store) == log_of(other)


def test_publishing_again_changes_nothing(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    table = appended(store)
    published = publish_all(store, table)
    log = log_of(store)
    head = published.publish(table.steps(), retain_s=0)
    assert head == published.publish([], retain_s=0) == published.head()
    assert head == DeltaTable(store, "ns", "t").publish([complete(table.steps()[-1])], retain_s=0)
    assert head.place == table.steps()[-1].place
    assert head.at_ms == table.steps()[-1].at_ms
    assert log_of(store) == log


@pytest.mark.parametrize("after", [False, True])
def test_a_publisher_cut_anywhere_is_continued_by_the_next(after: bool) -> None:
    whole = MemoryStore()
    table = compacted(whole)
    steps = table.steps()
    for cut in range(1, 200):
        store = MemoryStore()
        broken = CutStore(store, cut, after)
        for upto in (3, len(steps)):
            try:
                catch_up(broken, steps[:upto])
            except StoreUnavailable:
                catch_up(store, steps[:upto])
        if not broken.was_cut:
            break
        commits = [name for name in log_names(store) if name.endswith(".json")]
        assert commits == [f"{n:020d}.json" for n in range(3, len(steps) + 1)]
        head = DeltaTable(store, "ns", "t").head()
        assert head is not None and head.place == steps[-1].place
    assert cut > 10


def test_publishers_at_once_make_one_log() -> None:
    store = MemoryStore()
    table = keyed(store)
    for first in range(40, 100, 4):
        table.append(sample(first, 2))
    steps = table.steps()
    failed: list[BaseException] = []

    def run(size: int) -> None:
        try:
            for _ in range(3):
                one = DeltaTable(store, "ns", "t")
                for start in range(0, len(steps), size):
                    one.publish(steps[start : start + size], retain_s=0)
        except BaseException as exc:
            failed.append(exc)

    threads = [threading.Thread(target=run, args=(size,)) for size in (1, 2, 3, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    alone = MemoryStore()
    DeltaTable(alone, "ns", "t").publish(steps, retain_s=0)
    commits = {path: data for path, data in log_of(store).items() if path.endswith(".json")}
    assert commits == {path: data for path, data in log_of(alone).items() if path.endswith("json")}


def test_steps_with_a_gap_are_refused(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    steps = appended(store).steps()
    published = DeltaTable(store, "ns", "t")
    with pytest.raises(Overtaken):
        published.publish(steps[1:], retain_s=0)
    published.publish(steps[:1], retain_s=0)
    with pytest.raises(Overtaken):
        published.publish(steps[2:], retain_s=0)
    assert published.publish(steps[1:], retain_s=0).place == steps[-1].place


FOREIGN = [
    b'{"commitInfo":{"timestamp":1,"operation":"DELETE","engineInfo":"Apache-Spark/4.1"}}\n{}\n',
    b'{"commitInfo":{"timestamp":1,"operation":"WRITE","operationParameters":{},'
    b'"isBlindAppend":true}}\n',
    b'{"add":{"path":"x"}}\n',
    b"",
    b"not JSON",
]


@pytest.mark.parametrize("data", FOREIGN)
def test_a_commit_of_another_writer_stops_publishing(data: bytes, tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    table = appended(store)
    steps = table.steps()
    published = DeltaTable(store, "ns", "t")
    published.publish(steps[:3], retain_s=0)
    path = f"{LOG}{4:020d}.json"
    store.create(path, data)
    told = rf"ns/t is no longer published as delta: {path} was not written .*`ingester publish off`"
    for call in (
        lambda: published.publish(steps[3:], retain_s=0),
        published.head,
        lambda: published.publish(steps[3:], retain_s=0),
        lambda: DeltaTable(store, "ns", "t").publish(steps, retain_s=0),
    ):
        with pytest.raises(ForeignCommit, match=told):
            call()
    assert store.get(path) == data
    assert log_names(store)[-2:] == [f"{4:020d}.json", "_last_checkpoint"]
    # What the message advises:
    Path(root_of(store), "_delta_log").rename(tmp_path / "theirs")
    assert catch_up(store, steps).place == steps[-1].place
    check_read("deltalake", root_of(store), steps[-1], table.rows())


@pytest.mark.parametrize("make", [appended, switched])
def test_a_log_of_another_history_stops_publishing(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    store, other = open_store(str(tmp_path / "a")), open_store(str(tmp_path / "b"))
    steps, others = make(store).steps(), make(other).steps()
    published = DeltaTable(store, "ns", "t")
    published.publish(steps[:3], retain_s=0)
    with pytest.raises(ForeignCommit, match="another history"):
        DeltaTable(store, "ns", "t").publish(others[:3], retain_s=0)
    published.publish(steps[3:4], retain_s=0)
    slow = DeltaTable(store, "ns", "t")
    slow.head()
    published.publish(steps[4:], retain_s=0)
    if len(steps) > 4:
        with pytest.raises(ForeignCommit, match="another history"):
            slow.publish(others[4:], retain_s=0)


def test_a_log_that_readers_cannot_read_has_no_head_until_the_next_complete_step(
    tmp_path: Path,
) -> None:
    store = open_store(str(tmp_path))
    table = appended(store)
    steps = table.steps()
    for lost in (2, 3, None):
        publish_all(store, table)
        if lost is None:
            store.delete(f"{LOG}{1:020d}.checkpoint.parquet")
        else:
            store.delete(f"{LOG}{lost:020d}.json")
        assert DeltaTable(store, "ns", "t").head() is None
        assert catch_up(store, steps).place == steps[-1].place
        check_read("deltalake", root_of(store), steps[-1], table.rows())
        for info in list(store.list(LOG)):
            store.delete(info.path)


def test_a_log_that_is_moved_away_while_a_publisher_runs_begins_again(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    table = appended(store)
    steps = table.steps()
    running = DeltaTable(store, "ns", "t")
    running.publish(steps[:-1], retain_s=0)
    for info in list(store.list(LOG)):
        store.delete(info.path)
    with pytest.raises(Overtaken):
        running.publish(steps[-1:], retain_s=0)
    assert running.head() is None
    assert running.publish([complete(steps[-1])], retain_s=0).place == steps[-1].place
    check_read("deltalake", root_of(store), steps[-1], table.rows())


def test_a_commit_says_which_manifest_version_it_is(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    table = compacted(store)
    publish_all(store, table)
    for step in table.steps():
        info, *others = commit_lines(store, step.place.number)
        assert info["commitInfo"]["engineInfo"] == "ingester"
        assert info["commitInfo"]["ingesterTableVersion"] == step.place.table_version
        assert info["commitInfo"]["ingesterVersion"] == step.place.version
        assert info["commitInfo"]["ingesterUid"] == step.place.uid
        (txn,) = (line["txn"] for line in others if "txn" in line)
        assert (txn["appId"], txn["version"]) == ("ingester", step.place.number)
        files = [line[name] for line in others for name in ("add", "remove") if name in line]
        assert all(file["dataChange"] != step.rearranged for file in files)
        if not step.complete:
            assert len(files) == len(step.added) + len(step.removed)
