"""A daemon is paused before each step of a commit while it is replaced and its log is adopted.

Its log comes from a real daemon that was killed. The commit runs in a thread.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ingester.buffer import BufferedRows, RowsToFlush
from ingester.flush.file_writer import FileWriter
from ingester.recovery.adopt import adopt
from ingester.recovery.orphan_log import folder_log
from persist.manifest import (
    Action,
    Applied,
    Fenced,
    Manifest,
    Proposal,
    TableState,
    WriterAction,
    WriterIdentity,
    claim_epoch,
    commit,
)
from persist.parquet.copy_on_write import RewriteLimits
from persist.store import open_store
from tests.drivers.wire import events
from tests.fencing.pairs import ask_to_persist, rows_in_files, start, store_url, write
from tests.fencing.pausing import PausingStore

TABLE = ("ns", "t")
TAIL = 40
"""Acknowledged rows that are in no file; the same number of rows before them is in files."""
FIRST_OF_SECOND = 1000


@pytest.fixture(scope="module")
def left_behind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store, and the data directory ``first`` of a daemon that was killed in its first epoch."""
    folder = tmp_path_factory.mktemp("left")
    with start(folder, "first") as daemon:
        write(daemon, TABLE, events(0, TAIL, days=2))
        ask_to_persist(daemon, TABLE)
        write(daemon, TABLE, events(TAIL, TAIL // 2, days=2))
        write(daemon, TABLE, events(TAIL + TAIL // 2, TAIL // 2, days=2))
    return folder


def put_in(
    manifest: Manifest,
    writer: WriterIdentity,
    base: TableState,
    operations: list[tuple[int, tuple[str], pa.RecordBatch]],
) -> TableState:
    """Upload and commit operations as a daemon does: one file per partition, one commit."""
    parts: dict[tuple[str], list[tuple[int, pa.RecordBatch]]] = {}
    for seq, values, batch in operations:
        parts.setdefault(values, []).append((seq, batch))
    file_writer = FileWriter(manifest.store, writer, RewriteLimits(1 << 30))
    actions: list[Action] = []
    for values, batches in parts.items():
        rows = BufferedRows()
        for seq, batch in batches:
            rows.append(batch, seq=seq, nbytes=batch.nbytes, schema_number=1)
        first, last = batches[0][0], batches[-1][0]
        flushed = RowsToFlush(TABLE, (1, values), writer.epoch, first, last, rows)
        actions += file_writer.upload(flushed, base).files.adds
        actions.append(Applied(writer.ingester_id, writer.epoch, 1, values, last))
    return commit(manifest, base, Proposal(actions), writer)


class Scene:
    """A copy of the killed daemon's store and data, and the two daemons on it."""

    def __init__(self, left_behind: Path, folder: Path) -> None:
        shutil.copytree(left_behind, folder)
        self.folder = folder
        self.store = open_store(store_url(folder))
        self.log = folder_log(folder / "first" / "wal")
        (self.first,) = self.log.writers()
        self.second = WriterIdentity(self.first.ingester_id, "second", 0)

    def first_persists(self, manifest: Manifest) -> TableState:
        """The first daemon's next flush, with the manifest that it has open."""
        base = Manifest(self.store, *TABLE).load()
        operations = [
            (operation.seq, part.values, part.batch)
            for operation in self.log.operations()
            for part in operation.logged.parts
            if operation.seq > 1
        ]
        return put_in(manifest, self.first, base, operations)  # type: ignore[arg-type]

    def second_comes(self, *, touches: bool) -> None:
        """The second daemon claims an epoch; its first write to the table registers it there."""
        body = {"incarnation": "second"}
        epoch = claim_epoch(self.store, self.first.ingester_id, 1, body)
        self.second = WriterIdentity(self.first.ingester_id, "second", epoch)
        if touches:
            self.second_writes(1)

    def second_writes(self, seq: int) -> None:
        """Register the epoch, as before each first write, and flush a row."""
        manifest = Manifest(self.store, *TABLE)
        here = WriterAction(self.second.ingester_id, "second", self.second.epoch, "open")
        state = commit(manifest, None, Proposal([here]), self.second)
        rows = events(FIRST_OF_SECOND + seq, 1)
        put_in(manifest, self.second, state, [(seq, ("2026-11-21",), rows)])

    def adopted(self) -> int:
        """The rows that an adoption adds."""
        return sum(table.rows for table in adopt(self.folder / "first", self.store).tables)


@pytest.mark.parametrize("touches", [True, False])
@pytest.mark.parametrize("adopts", ["while it stands still", "afterwards"])
def test_a_daemon_that_pauses_before_any_call_of_a_commit_adds_each_row_once(
    left_behind: Path, tmp_path: Path, touches: bool, adopts: str
) -> None:
    fates: list[str] = []
    steps: list[tuple[str, str]] = []
    with ThreadPoolExecutor(1) as threads:
        for pause_at in itertools.count():
            scene = Scene(left_behind, tmp_path / str(pause_at))
            store = PausingStore(scene.store)
            manifest = Manifest(store, *TABLE)
            assert manifest.root
            store.calls.clear()
            store.pause_at = pause_at
            going: Future[TableState] = threads.submit(scene.first_persists, manifest)
            while not store.still.wait(0.005) and not going.done():
                pass
            if not store.still.is_set():
                break
            steps.append(store.calls[-1])
            scene.second_comes(touches=touches)
            early = scene.adopted() if adopts == "while it stands still" else None
            store.go_on.set()
            fates.append(fate_of(going))
            late = scene.adopted()
            assert (early or 0) + late == (0 if fates[-1] == "committed" else TAIL)
            assert scene.adopted() == 0
            scene.second_writes(2)
            newer = [FIRST_OF_SECOND + 1] if touches else []
            expected = [*range(2 * TAIL), *newer, FIRST_OF_SECOND + 2]
            assert rows_in_files(scene.folder, TABLE) == expected
            shutil.rmtree(scene.folder)
    kinds = [(call, path.rpartition(".")[2]) for call, path in steps]
    assert kinds.count(("put", "parquet")) == 2
    assert {("put", "changelog"), ("create", "commit"), ("get", "commit")} <= set(kinds)
    # Before the commit is created another process may win; after that none can.
    created = kinds.index(("create", "commit"))
    if touches or adopts == "while it stands still":
        assert fates[: created + 1] == ["fenced"] * (created + 1)
    assert fates[created + 1 :] == ["committed"] * (len(fates) - created - 1)
    assert len(fates) > created + 1


def fate_of(going: Future[TableState]) -> str:
    """The outcome of the first daemon's commit."""
    try:
        going.result(timeout=30)
    except Fenced:
        return "fenced"
    return "committed"


@pytest.mark.slow
@pytest.mark.parametrize("touches", [True, False])
def test_an_adoption_that_is_killed_before_any_call_is_completed_by_the_next(
    left_behind: Path, tmp_path: Path, touches: bool
) -> None:
    """Killed for good: its files and changelogs are garbage, its commits count."""
    added_before: list[int] = []
    for stop_at in itertools.count():
        scene = Scene(left_behind, tmp_path / str(stop_at))
        scene.second_comes(touches=touches)
        store = StoppingStore(scene.store)
        store.pause_at = stop_at
        try:
            adopt(scene.folder / "first", store)
        except Killed:
            rest = scene.adopted()
            added_before.append(TAIL - rest)
            assert rest in (0, TAIL)
            assert scene.adopted() == 0
            expected = [*range(2 * TAIL), *([FIRST_OF_SECOND + 1] if touches else [])]
            assert rows_in_files(scene.folder, TABLE) == expected
            shutil.rmtree(scene.folder)
        else:
            break
    assert set(added_before) == {0, TAIL}
    assert len(added_before) > 10


class Killed(BaseException):
    """The process has ended: no handler catches this."""


class StoppingStore(PausingStore):
    """Ends its caller before call number ``pause_at``, and before each later one."""

    def _do(self, call: str, path: str, work: Callable[[], Any]) -> Any:
        self.calls.append((call, path))
        if self.pause_at is not None and len(self.calls) > self.pause_at:
            raise Killed
        return work()
