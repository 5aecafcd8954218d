"""Flushes of a keyed table share a commit; one that conflicts is retried and delays no other.

Another process commits to one of three partitions while they are committed together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import trio
from msgspec import structs

import ingester.flush.flusher
from ingester.buffer import FlushJob
from ingester.flush.file_writer import FileWriter
from persist.manifest import (
    Action,
    Applied,
    Manifest,
    Proposal,
    Remove,
    TableState,
    WriterAction,
    WriterIdentity,
    commit,
)
from persist.manifest.origins import fresh, taken_over
from persist.parquet.copy_on_write import RewriteLimits
from persist.store import open_store
from persist.store.contract import PutInfo
from persist.store.local import LocalStore
from tests.drivers.stage import KEYED_PARTITIONED, PARTITIONS, WRITER, Stage

TOUCHED = 1
"""The partition that another process commits to."""
ORIGIN = "source"
COMPACTOR = WriterIdentity("compactor", "1" * 16, 1)
OTHER = WriterIdentity("other", "2" * 16, 1)
Meddling = Callable[[Stage], None]


class BusyStore(LocalStore):
    """Runs ``meanwhile`` once, when the next commit is about to be created."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.meanwhile: Callable[[], None] = lambda: None

    def create(self, path: str, data: Any) -> PutInfo:
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        return super().create(path, data)


def _manifest(stage: Stage) -> Manifest:
    return Manifest(open_store(stage.store.url), "ns", "t")


def _put_in(stage: Stage, writer: WriterIdentity, actions: list[Action]) -> TableState:
    return commit(_manifest(stage), None, Proposal(actions), writer)


def _job(stage: Stage) -> FlushJob:
    (found,) = [h for h in stage.table.handles() if h.partition[1] == (TOUCHED,)]
    return FlushJob(stage.table, stage.table.partitions[found.partition], found)


def rewrite(stage: Stage) -> None:
    """A compaction replaces one of the partition's files."""
    manifest = _manifest(stage)
    ((old, *_),) = [
        adds for key, adds in manifest.load().partitions.items() if key[1] == (TOUCHED,)
    ]
    path = old.path.replace(".parquet", "-rewritten.parquet")
    data = stage.store.get(f"{manifest.root}/{old.path}")
    stage.store.put(f"{manifest.root}/{path}", data)
    _put_in(
        stage,
        COMPACTOR,
        [Remove(old.path, "compacted"), structs.replace(old, path=path, kind="rewrite")],
    )


def _adopt(stage: Stage, upto: int | None) -> None:
    """A copy of our log is adopted: this partition's operations up to ``upto``, or all."""
    job, state = _job(stage), _manifest(stage).load()
    handle = job.handle
    upto = handle.last_seq if upto is None else upto
    later = range(upto + 1, handle.last_seq + 1)
    file_writer = FileWriter(stage.store, WRITER, RewriteLimits(500_000))
    upload = file_writer.upload(job.rows, state, left_out=later)
    spec_id, values = handle.partition
    actions: list[Action] = [Remove(add.path, "replaced") for add in upload.replaced]
    actions += [structs.replace(add, last_seq=upto) for add in upload.files.adds]
    actions += [Applied(WRITER.ingester_id, handle.epoch, spec_id, values, upto)]
    _put_in(stage, WRITER, actions)


def adopt_half(stage: Stage) -> None:
    """Adopt the first of the buffer's two operations."""
    _adopt(stage, _job(stage).handle.first_seq)


def adopt_all(stage: Stage) -> None:
    """Adopt the whole buffer."""
    _adopt(stage, None)


def adopt_replayed_half(stage: Stage) -> None:
    """Adopt half of a buffer that was replayed from our own log as well."""
    stage.catalog.commits.overlap.note_replayed(stage.table, _job(stage).handle)
    adopt_half(stage)


def nothing(stage: Stage) -> None:
    """No other process commits."""


def add(stage: Stage) -> None:
    """Another daemon adds rows with the same keys, and replaces no files."""
    _add(stage, [])


def take_over(stage: Stage) -> None:
    """Another daemon adds rows and takes over the origin from after our last sequence."""
    known = _manifest(stage).load().origins.get(ORIGIN)
    ours = (WRITER.ingester_id, 1)
    start = fresh(ORIGIN, ours) if known is None else known
    theirs = (OTHER.ingester_id, OTHER.epoch)
    _add(stage, [taken_over(start, theirs, 1000, None)])


def _add(stage: Stage, further: list[Action]) -> None:
    job, state = _job(stage), _manifest(stage).load()
    handle = job.handle
    partitions = state.partitions.delete(handle.partition)
    file_writer = FileWriter(stage.store, OTHER, RewriteLimits(500_000))
    upload = file_writer.upload(job.rows, replace(state, partitions=partitions))
    assert not upload.replaced
    spec_id, values = handle.partition
    applied = Applied(OTHER.ingester_id, handle.epoch, spec_id, values, handle.last_seq)
    writer = WriterAction(OTHER.ingester_id, OTHER.incarnation, OTHER.epoch, "open")
    _put_in(stage, OTHER, [writer, *upload.files.adds, applied, *further])


async def _run(
    stage: Stage, store: BusyStore, meddling: Meddling, messages: int = 0
) -> tuple[int, int]:
    async with stage.running():
        stage.write(31)
        await stage.persist()
        first = stage.table.state.version
        stage.write(17, ORIGIN, messages)
        stage.write(19, ORIGIN, messages)
        store.meanwhile = lambda: meddling(stage)
        await stage.persist()
    return first, stage.table.state.version


@pytest.mark.parametrize(
    ("meddling", "commits"),
    [
        (nothing, 1),
        (rewrite, 3),
        (add, 3),
        (take_over, 3),
        (adopt_half, 3),
        (adopt_replayed_half, 3),
        # The last commit only records the origin, whose rows are already in files.
        (adopt_all, 3),
    ],
)
def test_what_cannot_go_in_comes_again_and_the_others_go_together(
    meddling: Meddling, commits: int, tmp_path: Path
) -> None:
    store = BusyStore(tmp_path / "store")
    stage = Stage(tmp_path, KEYED_PARTITIONED, store)
    first, last = trio.run(_run, stage, store, meddling)
    assert last - first == commits
    _check(stage)


def _check(stage: Stage) -> None:
    """Files have the latest rows, and the daemon shows the newest version."""
    manifest = _manifest(stage)
    state = manifest.load()
    assert state == stage.table.state
    root = Path(stage.store.url.removeprefix("file://")) / manifest.root
    found = [
        (add.values[0], k, n) for add in state.files.values() for n, k in _pairs(root / add.path)
    ]
    expected = {(n % PARTITIONS, k): n for n, k in stage.rows}
    assert sorted(found) == sorted((p, k, n) for (p, k), n in expected.items())


def _pairs(path: Path) -> list[tuple[int, int]]:
    table = pq.read_table(path, partitioning=None)
    return list(zip(table["n"].to_pylist(), table["k"].to_pylist(), strict=True))


@pytest.mark.parametrize(
    "meddling", [nothing, rewrite, add, take_over, adopt_half, adopt_replayed_half, adopt_all]
)
def test_what_replication_wrote_goes_in_whole(meddling: Meddling, tmp_path: Path) -> None:
    made = []
    for name, what in (("quiet", nothing), ("busy", meddling)):
        folder = tmp_path / name
        store = BusyStore(folder / "store")
        stage = Stage(folder, KEYED_PARTITIONED, store)
        first, last = trio.run(_run, stage, store, what, 1)
        assert last - first == (1 if what is nothing else 2)
        _check(stage)
        made.append([len(_files(folder, p)) for p in range(PARTITIONS) if p != TOUCHED])
    # A flush that only had to wait for another one was not encoded again.
    assert made[0] == made[1] and all(made[0])


def _files(folder: Path, partition: int) -> list[Path]:
    return [*folder.rglob(f"p_key={partition}/*.parquet")]


def test_a_set_never_has_half_of_an_operation(tmp_path: Path) -> None:
    """Operations of a new epoch, while buffers of the old one remain."""
    stage = Stage(tmp_path, KEYED_PARTITIONED)
    frozen: list[FlushJob] = []

    async def run() -> None:
        await stage.create()
        stage.on_freeze = frozen.append
        stage.write(PARTITIONS, messages=1)
        for partition in list(stage.table.partitions.values())[:-1]:
            stage.tree.freeze(partition)
        assert len({job.atomic for job in frozen}) == 1
        stage.write(1, messages=1)  # of the first partition
        stage.epoch = 2
        stage.write(2, messages=1)  # of the other partitions
        stage.write(PARTITIONS, messages=1)

    trio.run(run)
    assert len(frozen) == PARTITIONS + 1
    assert {job.handle.epoch for job in frozen} == {1}
    active = [handle for handle in stage.table.handles() if not handle.frozen]
    assert [handle.epoch for handle in active] == [2] * PARTITIONS


def test_others_do_not_wait_for_one_that_cannot_be_made_into_files(tmp_path: Path) -> None:
    stage = Stage(tmp_path, KEYED_PARTITIONED)

    async def run() -> None:
        async with stage.running():
            stage.write(31, messages=1)
            await stage.persist()
            damaged = _files(tmp_path, TOUCHED)[0]
            whole = damaged.read_bytes()
            damaged.write_bytes(whole[:-100] + bytes(100))
            for count in (17, 19):
                stage.write(count, messages=1)
                for partition in list(stage.table.partitions.values()):
                    stage.tree.freeze(partition)
            with trio.fail_after(20):
                while {h.partition[1] for h in stage.table.handles()} != {(TOUCHED,)}:
                    await trio.sleep(0.001)
            damaged.write_bytes(whole)
            await stage.persist()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ingester.flush.flusher, "ENCODE_RETRY_S", 0.2)
        trio.run(run)
    _check(stage)
