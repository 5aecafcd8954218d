"""The log objects of a daemon whose disk is lost are adopted: each row once, wherever it stops."""

from __future__ import annotations

import itertools
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pyarrow.parquet as pq
import pytest

from ingester.recovery.adopt import adopt, claim_adoption
from ingester.recovery.adopt_store import adopt_from_store
from ingester.recovery.log_gc import collect_logs
from persist.manifest import Manifest
from persist.store import ObjectStore, open_store
from tests.drivers.memory_store import MemoryStore
from tests.drivers.wire import create, events
from tests.fencing.pairs import ask_to_persist, rows_in_files, start, store_url, write
from tests.fencing.pausing import PausingStore
from tests.recovery.shipped import ship
from wal.objects import DiskOnly, object_folder, parse_object

ID = "lost"
PLAIN, KEYED = ("ns", "plain"), ("ns", "keyed")
SCHEMA = pa.schema([pa.field("i", pa.int64(), nullable=False), pa.field("v", pa.int64())])


def keyed_rows(first: int, count: int, v: int) -> pa.RecordBatch:
    return pa.record_batch({"i": range(first, first + count), "v": [v] * count}, schema=SCHEMA)


@pytest.fixture(scope="module")
def left_behind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store, and the data directory of a daemon that was killed with rows in no file."""
    folder = tmp_path_factory.mktemp("left")
    with start(folder, "disk", id=ID) as daemon:
        with fl.connect(daemon.flight) as client:
            create(client, KEYED, SCHEMA, primary_key=["i"])
        write(daemon, PLAIN, events(0, 10))
        write(daemon, KEYED, keyed_rows(0, 10, 1))
        ask_to_persist(daemon, PLAIN)
        ask_to_persist(daemon, KEYED)
        write(daemon, PLAIN, events(10, 20, days=2))
        write(daemon, KEYED, keyed_rows(5, 10, 2), keyed_rows(8, 4, 3))
        write(daemon, PLAIN, events(30, 10))
        daemon.kill()
    return folder


class Scene:
    """A copy of the killed daemon's store, with the log objects of its log."""

    def __init__(self, left_behind: Path, **how: Any) -> None:
        self.disk = left_behind / "disk"
        self.store = MemoryStore()
        there = open_store(store_url(left_behind))
        for info in there.list(""):
            self.store.put(info.path, there.get(info.path))
        self.paths = ship(self.disk / "wal", self.store, **how)

    def objects(self) -> list[int]:
        """The numbers of the objects that exist."""
        return [name.number for name in names_in(self.store)]

    def check_rows(self) -> None:
        """Each row is in files, once, the last of each key."""
        assert in_files(self.store, PLAIN) == list(range(40))
        assert in_files(self.store, KEYED) == list(range(15))
        assert in_files(self.store, KEYED, "v") == [1] * 5 + [2] * 6 + [3] * 4
        held = Manifest(self.store, *KEYED).load().writers[ID]
        assert held.state == "closed", "another daemon may write to it"


def in_files(store: ObjectStore, table: tuple[str, str], column: str = "i") -> list[Any]:
    """A column of the newest version's files, sorted."""
    manifest = Manifest(store, *table)
    found = [store.get(manifest.object_path(path)) for path in manifest.load().files]
    tables = [pq.ParquetFile(pa.BufferReader(data)).read(columns=[column]) for data in found]
    return sorted(pa.concat_tables(tables)[column].to_pylist())


def names_in(store: ObjectStore, ingester_id: str = ID) -> list[Any]:
    names = (parse_object(info.path) for info in store.list(object_folder(ingester_id)))
    return [name for name in names if name is not None]


def test_a_log_in_the_store_is_adopted_once_and_only_its_fence_is_left(left_behind: Path) -> None:
    lost = DiskOnly("ns", "other", 7, 90)
    scene = Scene(left_behind, disk_only=(lost,))
    count = len(scene.paths)
    done = adopt_from_store(ID, scene.store)
    assert {(one.table, one.rows) for one in done.tables} == {("plain", 30), ("keyed", 14)}
    assert [(one.table, one.operations, one.epoch) for one in done.lost] == [("other", 7, 1)]
    assert done.epochs == {ID: [1]}
    scene.check_rows()
    assert scene.objects() == [count + 1]
    claims = len(list(scene.store.list("_ingesters/")))
    again = adopt_from_store(ID, scene.store)
    assert (again.tables, again.lost) == ([], [])
    assert len(list(scene.store.list("_ingesters/"))) == claims, "no further epoch"
    scene.check_rows()


class Cut(BaseException):
    """The process has died."""


class CutStore(PausingStore):
    """The process dies before or after its n-th call, in whichever thread."""

    def __init__(self, inner: ObjectStore, at: int, when: str) -> None:
        super().__init__(inner)
        self._at = at
        self._when = when
        self._lock = Lock()
        self.died = False

    def _do(self, call: str, path: str, work: Any) -> Any:
        with self._lock:
            if self.died:
                raise Cut
            self.calls.append((call, path))
            self.died = len(self.calls) == self._at
            if self.died and self._when == "before":
                raise Cut
            done = work()
            if self.died:
                raise Cut
            return done


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_adoption_that_is_cut_at_any_call_twice_in_a_row_adds_each_row_once(
    left_behind: Path, when: str
) -> None:
    steps: list[tuple[str, str]] = []
    for at in itertools.count(1):
        scene = Scene(left_behind)
        cut = [CutStore(scene.store, at, when), CutStore(scene.store, at, when)]
        for store in cut:
            with suppress(Cut):
                adopt_from_store(ID, store)
        if not cut[0].died:
            break
        steps.append(cut[0].calls[-1])
        adopt_from_store(ID, scene.store)
        scene.check_rows()
        assert len(scene.objects()) == 1, steps[-1]
    calls = {call for call, _ in steps}
    assert {"create", "get", "put", "list", "delete"} <= calls
    assert any(call == "create" and path.startswith("_log/") for call, path in steps), "a fence"
    assert any(call == "create" and path.startswith("_ingesters/") for call, path in steps)


def test_two_adoptions_at_a_time_add_each_row_once(left_behind: Path) -> None:
    """One is paused at each of its calls while the other one does everything, and deletes."""
    scene = Scene(left_behind)
    counted = PausingStore(scene.store)
    adopt_from_store(ID, counted)
    vanished = 0
    for at, (call, path) in enumerate(counted.calls):
        if not (path.startswith("_log/") or call == "create"):
            continue
        scene = Scene(left_behind)
        store = Interrupting(scene.store, at, lambda scene=scene: adopt_from_store(ID, scene.store))
        adopt_from_store(ID, store)
        scene.check_rows()
        assert len(scene.objects()) == 1
        vanished += call == "get" and path == scene.paths[-1]
    assert vanished


class Interrupting(PausingStore):
    """Lets another process work before the n-th call."""

    def __init__(self, inner: ObjectStore, at: int, meanwhile: Any) -> None:
        super().__init__(inner)
        self._at = at
        self._meanwhile = meanwhile

    def _do(self, call: str, path: str, work: Any) -> Any:
        self.calls.append((call, path))
        if len(self.calls) == self._at + 1:
            self._meanwhile()
        return work()


def test_what_lies_behind_the_fence_was_never_acknowledged_and_is_deleted(
    left_behind: Path,
) -> None:
    scene = Scene(left_behind, behind=1)
    done = adopt_from_store(ID, scene.store)
    assert {(one.table, one.rows) for one in done.tables} == {("plain", 20), ("keyed", 14)}
    assert in_files(scene.store, PLAIN) == list(range(30))
    assert scene.objects() == [len(scene.paths)]


def test_a_collection_deletes_what_a_dead_adoption_has_left_and_nothing_before(
    left_behind: Path,
) -> None:
    scene = Scene(left_behind, behind=1)
    objects = scene.objects()
    assert collect_logs(scene.store, 0, dry_run=False) == [], "no epoch has followed"
    claim_adoption(scene.store, ID, 2)
    assert collect_logs(scene.store, 0, dry_run=False) == [], "no fence"
    with pytest.raises(Cut):
        adopt_from_store(ID, DyingStore(scene.store, "put", ".parquet"))
    (some,) = collect_logs(scene.store, 0, dry_run=False)
    assert (some.ingester_id, some.objects) == (ID, 1), "what is behind the fence"
    assert scene.objects() == [*objects[:-1], objects[-1] - 1]
    with pytest.raises(Cut):
        adopt_from_store(ID, DyingStore(scene.store, "delete", "_log/"))
    assert collect_logs(scene.store, 60, dry_run=False) == [], "a start may be reading"
    (would,) = collect_logs(scene.store, 0, dry_run=True)
    assert would.objects == len(objects) - 1
    assert scene.objects() == [*objects[:-1], objects[-1] - 1]
    assert collect_logs(scene.store, 0, dry_run=False) == [would]
    assert scene.objects() == [objects[-1] - 1]
    assert collect_logs(scene.store, 0, dry_run=False) == []


class DyingStore(PausingStore):
    """The process dies before a call."""

    def __init__(self, inner: ObjectStore, call: str, part: str) -> None:
        super().__init__(inner)
        self._dies = (call, part)

    def _do(self, call: str, path: str, work: Any) -> Any:
        if call == self._dies[0] and self._dies[1] in path:
            raise Cut
        return work()


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_collection_beside_an_adoption_takes_nothing_from_it(left_behind: Path, at: int) -> None:
    """The objects go while the adoption reads them; it looks again and has every row."""
    scene = Scene(left_behind)
    read: list[str] = []
    with pytest.raises(Cut):
        adopt_from_store(ID, DyingStore(scene.store, "delete", "_log/"))

    def before_a_read(call: str, path: str) -> None:
        if call == "get" and path in scene.paths:
            read.append(path)
            if len(read) == at:
                collect_logs(scene.store, 0, dry_run=False)

    adopt_from_store(ID, Watching(scene.store, before_a_read))
    assert len(read) >= at
    scene.check_rows()
    assert len(scene.objects()) == 1


class Watching(PausingStore):
    """Reports each call before it is made."""

    def __init__(self, inner: ObjectStore, tell: Any) -> None:
        super().__init__(inner)
        self._tell = tell

    def _do(self, call: str, path: str, work: Any) -> Any:
        self._tell(call, path)
        return work()


def test_an_old_disk_that_turns_up_adds_only_what_the_store_did_not_have(left_behind: Path) -> None:
    scene = Scene(left_behind, behind=1)
    adopt_from_store(ID, scene.store)
    for _ in range(2):
        done = adopt(scene.disk, scene.store)
        assert not done.refused
        scene.check_rows()


def test_rows_of_two_epochs_of_a_keyed_table_are_adopted_in_order(tmp_path: Path) -> None:
    """The second process was killed, and its disk lost, before it had flushed what it replayed."""
    with start(tmp_path, "disk", id=ID) as daemon:
        with fl.connect(daemon.flight) as client:
            create(client, KEYED, SCHEMA, primary_key=["i"])
        write(daemon, KEYED, keyed_rows(0, 10, 1))
        daemon.kill()
        with daemon.again() as daemon:
            write(daemon, KEYED, keyed_rows(5, 10, 2))
            daemon.kill()
    store = open_store(store_url(tmp_path))
    ship(tmp_path / "disk" / "wal", store)
    done = adopt_from_store(ID, store)
    assert not done.refused
    assert done.epochs == {ID: [1, 2]}
    assert rows_in_files(tmp_path, KEYED) == list(range(15))
    assert sorted(rows_in_files(tmp_path, KEYED, "v")) == [1] * 5 + [2] * 10
    assert [(name.epoch, name.number) for name in names_in(store)] == [(1, 2), (2, 2)]
