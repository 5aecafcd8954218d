"""Tables "manifest-…": the cost of a table's size for commits, for opening it and for following it.

One process with a local disk and the manifest's own calls; requests and bytes are counted at the
store. Each number is shown relative to the smallest table of the same run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa

from persist.manifest import (
    Action,
    Add,
    Applied,
    ColumnStats,
    Manifest,
    Proposal,
    Schema,
    Spec,
    TableState,
    WriterIdentity,
    commit,
    write_snapshot,
)
from persist.manifest.paths import commit_path
from persist.store import open_store
from tests.bench.effort import Bench
from tests.bench.report import Table, Target
from tests.bench.requests import ask, create_table, send
from tests.bench.samples import Samples
from tests.persist.manifest.stores import FaultyStore

NAME = "manifest"
WRITER = WriterIdentity("bench", "run", 1)
_DEFINITION: tuple[Action, ...] = (Schema(schema_id=1, arrow="AAAA"), Spec(1, ("day(time)",)))
_DAY = ("2026-11-21",)
_COMMITS = 40
_PARTITIONED = pa.schema([("part", pa.int64()), ("value", pa.float64())])


def run(bench: Bench) -> list[Table]:
    """Measure commits and opening by files, finding the head by versions, commits by partitions."""
    return [_files(bench), _versions(bench), _together(bench)]


def wide_files(first_seq: int, files: int = 1) -> list[Action]:
    """Actions that add files of one operation and bounds of twenty columns; their watermark last.

    All are in one partition, which is the more expensive case.
    """
    stats = {f"column_{n:02d}": ColumnStats(min=n, max=n + 0.5, nulls=0) for n in range(20)}
    adds: list[Action] = [
        Add(
            path=f"data/time_day={_DAY[0]}/{seq:032x}.parquet",
            kind="persist",
            rows=100_000,
            bytes=4_000_000,
            spec_id=1,
            values=_DAY,
            stats=stats,
            writer=WRITER.ingester_id,
            epoch=WRITER.epoch,
            first_seq=seq,
            last_seq=seq,
            schema_id=1,
            at="2026-11-21T00:00:00+00:00",
            footer_crc32c=seq,
        )
        for seq in range(first_seq, first_seq + files)
    ]
    return [*adds, Applied(WRITER.ingester_id, WRITER.epoch, 1, _DAY, first_seq + files - 1)]


def table_of(store: FaultyStore, name: str, live_files: int) -> tuple[Manifest, TableState]:
    """Make a table with this many files and a snapshot of them."""
    manifest = Manifest(store, "bench", name)
    state = commit(manifest, None, Proposal(_DEFINITION), WRITER)
    state = commit(manifest, state, Proposal(wide_files(1, live_files)), WRITER)
    return manifest, write_snapshot(manifest, state)


def _files(bench: Bench) -> Table:
    table = Table(
        "manifest-files",
        "Manifest: by live files, each with bounds of 20 columns",
        ["live files", "objects/commit", "bytes/commit", "commit", "of fewest", "open",
         "snapshot"],
        notes=["open: by a process that knows nothing, from the snapshot; a commit adds one file"],
    )  # fmt: skip
    store = FaultyStore(open_store(f"file://{bench.new_folder()}"))
    fewest: Samples | None = None
    opened: Samples | None = None
    for live_files in bench.effort.manifest_files:
        bench.say(f"{live_files:,} live files")
        manifest, state = table_of(store, f"files-{live_files}", live_files)
        opened = _repeated(bench, Manifest(store, "bench", manifest.table).load)
        written = _repeated(bench, partial(write_snapshot, manifest, state))
        store.calls.clear()
        store.bytes_put = 0
        commits = _repeated(bench, _Committer(manifest, state, live_files).commits)
        made = bench.effort.repeats * _COMMITS
        each = Samples(tuple(s / _COMMITS for s in commits.values), "s")
        fewest = fewest or each
        table.add(
            live_files=live_files,
            objects__commit=f"{(store.calls['put'] + store.calls['create']) / made:.1f}",
            bytes__commit=store.bytes_put // made,
            commit=each,
            of_fewest=each.over(fewest),
            open=opened,
            snapshot=written,
        )
    assert opened is not None
    table.targets.append(Target("opening the largest table", 1.0, opened, below=True))
    return table


class _Committer:
    """Adds files one after another."""

    def __init__(self, manifest: Manifest, state: TableState, last_seq: int) -> None:
        self._manifest = manifest
        self._state = state
        self._last_seq = last_seq

    def commits(self) -> None:
        for _ in range(_COMMITS):
            self._last_seq += 1
            proposal = Proposal(wide_files(self._last_seq))
            self._state = commit(self._manifest, self._state, proposal, WRITER)


def _versions(bench: Bench) -> Table:
    table = Table(
        "manifest-head",
        "Manifest: finding the head, by kept versions",
        ["kept versions", "knows", "requests", "seconds", "of fewest"],
        notes=["a process knows the last version that it has seen, or nothing when it starts"],
    )
    fewest: dict[str, Samples] = {}
    for versions in bench.effort.manifest_versions:
        bench.say(f"{versions:,} versions")
        folder = bench.new_folder()
        store = FaultyStore(open_store(f"file://{folder}"))
        manifest = Manifest(store, "bench", "versions")
        plant_commits(folder, manifest, versions)
        for knows, hint in (("nothing", 0), ("the last but one", versions - 1)):
            taken = _repeated(bench, partial(find_head, manifest, hint, versions))
            store.calls.clear()
            find_head(manifest, hint, versions)
            beside = fewest.setdefault(knows, taken)
            table.add(
                kept_versions=versions,
                knows=knows,
                requests=sum(store.calls.values()),
                seconds=taken,
                of_fewest=taken.over(beside),
            )
    return table


def plant_commits(folder: Path, manifest: Manifest, versions: int) -> None:
    """Create commit objects of these versions; their contents are never read."""
    (folder / manifest.folder).mkdir(parents=True)
    for version in range(1, versions + 1):
        (folder / commit_path(manifest.folder, version)).touch()


def find_head(manifest: Manifest, hint: int, expected: int) -> None:
    """Find the head as a process does that last saw ``hint``, 0 for none."""
    reader = Manifest(manifest.store, manifest.namespace, manifest.table)
    reader.note(hint)
    assert reader.head() == expected


def _together(bench: Bench) -> Table:
    partitions = bench.effort.manifest_partitions
    table = Table(
        "manifest-together",
        f"Manifest: {partitions:,} partitions that persist at once",
        ["table", "partitions", "commits", "partitions/commit", "seconds"],
    )
    for key, times in (((), 1), (("part",), 2)):
        with bench.daemon(persist__workers=2) as daemon:
            for replaces in range(times):
                began = time.perf_counter()
                made = persist_together(daemon.flight, partitions, key)
                taken = time.perf_counter() - began
                what = "keyed, replacing" if replaces else "keyed" if key else "no key"
                table.add(
                    table=what,
                    partitions=partitions,
                    commits=made,
                    partitions__commit=f"{partitions / made:.0f}",
                    seconds=Samples((taken,), "s"),
                )
                table.targets.append(Target(f"commits for {partitions:,} partitions, {what}", 101,
                                            Samples((made,), ""), below=True))  # fmt: skip
    return table


def persist_together(flight: str, partitions: int, key: Sequence[str] = ()) -> int:
    """Write one row to each partition, flush all, and return the number of commits.

    An existing table is reused; if it has a key, its files are replaced.
    """
    table = "together"
    create_table(
        flight, table, schema=_PARTITIONED, partition_by=["identity(part)"], primary_key=key
    )
    send(flight, table, list(_one_row_each(partitions)))
    before = ask(flight, "describe_table", table)["manifest_version"]
    after = ask(flight, "persist", table, timeout_s=280)["manifest_version"]
    found = ask(flight, "describe_table", table)["persisted"]
    assert (found["files"], found["rows"]) == (partitions, partitions)
    return int(after - before)


def _one_row_each(partitions: int) -> Iterator[pa.RecordBatch]:
    for first in range(0, partitions, 1_000):
        numbers = pa.array(range(first, min(first + 1_000, partitions)), pa.int64())
        columns = [numbers, numbers.cast(pa.float64())]
        yield pa.record_batch(columns, schema=_PARTITIONED)


def _repeated(bench: Bench, work: Callable[[], object]) -> Samples:
    seconds = []
    for _ in range(bench.effort.repeats):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return Samples(tuple(seconds), "s")
