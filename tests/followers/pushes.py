"""Pushes of table versions through a real region, with concurrent readers of a copy."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ingester.client import Client
from ingester.followers import open_copy
from ingester.pushes.config import push_config
from ingester.pushes.driver import utc_now
from ingester.pushes.record import PushPlan, PushRecord, new_push
from ingester.pushes.regions.region import open_regions
from ingester.pushes.regions.shapes import with_schema
from tests.drivers.daemon import Daemon
from tests.drivers.pushing import write_rows
from tests.drivers.waiting import until

PUSHED = 100
STREAMED_FROM = 1000
Row = tuple[int, str]


def pushed_rows(label: str) -> pa.RecordBatch:
    """Return the rows of a push."""
    ids = pa.array(range(PUSHED), pa.int64())
    return pa.record_batch({"id": ids, "v": [label] * PUSHED})


class Pushes:
    """The pushes of one table, in a region with one daemon."""

    def __init__(self, daemon: Daemon, namespace: str, table: str) -> None:
        url = f"file://{daemon.data_dir / 'store'}"
        regions = {"here": {"url": url, "endpoints": [daemon.flight]}}
        config = push_config({"regions": regions})
        self.region = open_regions(config.regions)["here"]
        self.table = (namespace, table)
        self._order = config.order()

    def begin(self, push_id: str) -> PushRecord:
        """Create a version without data."""
        plan = with_schema(PushPlan(), pushed_rows("").schema)
        record = new_push(push_id, self.table, self._order, {}, utc_now(), plan)
        self.region.register_schema(record)
        self.region.create_version(record)
        return record

    def fill(self, record: PushRecord) -> None:
        """Write all data of a push at once."""
        rows = pushed_rows(record.push_id)
        self.region.commit_data(record, write_rows([self.region], record, rows))

    def made(self, push_id: str) -> PushRecord:
        """Create a version with its data, but do not announce it."""
        record = self.begin(push_id)
        self.fill(record)
        return record

    def prepare(self, record: PushRecord) -> None:
        """Return when all followers have confirmed the version."""
        self.region.start_followers(record)
        until(lambda: not self.region.lagging_followers(record), "followers to confirm")


def check_view(rows: Sequence[Row]) -> str:
    """Return the push whose rows these are; fail on a mixture, or a gap in the streamed rows."""
    by_label: dict[str, list[int]] = defaultdict(list)
    for id_, label in rows:
        by_label[label].append(id_)
    streamed = sorted(by_label.pop("streamed", []))
    assert streamed == list(range(streamed[0], streamed[-1] + 1)) if streamed else True, streamed
    assert len(by_label) == 1, {label: len(ids) for label, ids in by_label.items()}
    ((label, ids),) = by_label.items()
    assert sorted(ids) == list(range(PUSHED)), f"{len(ids)} rows of {label}"
    return label


def in_duckdb(path: Path, table: str) -> list[Row]:
    """Return the rows that a reader of a DuckDB file sees."""
    with open_copy(path, wait_s=30.0) as reader:
        return reader.execute(f"SELECT id, v FROM {table}").fetchall()


def in_parquet(path: Path, table: str) -> list[Row]:
    """Return the rows that a reader of a folder sees; it resolves the link once.

    The reader repeats this if two commits overtook it.
    """
    while True:
        folder = (path / table).resolve(strict=True)
        try:
            found = [pq.read_table(file) for file in folder.glob("*.parquet")]
        except FileNotFoundError:
            continue
        return [(row["id"], row["v"]) for each in found for row in each.to_pylist()]


class Reading:
    """Reads a copy continuously and checks that each view is complete."""

    def __init__(self, read: Callable[[], list[Row]]) -> None:
        self._read = read
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.labels: list[str] = []
        """The pushes seen, in order."""
        self.error: BaseException | None = None

    def __enter__(self) -> Reading:
        self._thread.start()
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        self._stop.set()
        self._thread.join(60.0)
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.03):
                label = check_view(self._read())
                if label not in self.labels[-1:]:
                    self.labels.append(label)
        except BaseException as exc:
            self.error = exc


@contextmanager
def streaming(endpoint: str, namespace: str, table: str) -> Iterator[Callable[[], int]]:
    """Write rows with rising ids in a thread; yield a function that counts acknowledged rows."""
    stop, written = threading.Event(), [0]
    errors: list[BaseException] = []

    def run() -> None:
        try:
            with Client(endpoint) as client:
                while not stop.wait(0.005):
                    ids = list(range(STREAMED_FROM + written[0], STREAMED_FROM + written[0] + 3))
                    client.write(namespace, table, {"id": ids, "v": ["streamed"] * 3})
                    written[0] += 3
        except BaseException as exc:
            errors.append(exc)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield lambda: written[0]
    finally:
        stop.set()
        thread.join(30.0)
    assert not errors, errors
