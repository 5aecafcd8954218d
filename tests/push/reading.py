"""Readers that query continuously, each in its own way, and judge every answer.

    by daemon   Client.query
    by store    the files that the current version's manifest lists
    by DuckDB   the file of a follower
    by Spark    read_table, from time to time

An answer that mixes versions, is incomplete or fails ends the run. Rows of an edition that a
reader has seen do not disappear while the edition is current.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from ingester.client import Client
from ingester.followers import open_copy
from ingester.pushes.config import RegionSettings
from ingester.spark import read_table
from persist.manifest import Manifest
from persist.store import ObjectStore
from tests.push.rows import COLUMNS, NAMESPACE, TABLE, Seen, seen

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Read = Callable[[], pa.Table]


class Reader:
    """One reader in its own thread; ``read`` returns an answer."""

    def __init__(self, name: str, read: Read, every_s: float = 0.1) -> None:
        self.name = name
        self.editions: Counter[int] = Counter()
        """The number of answers from each edition."""
        self._read = read
        self._every_s = every_s
        self._last: Seen | None = None
        self._end = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name=name)

    def begin(self) -> None:
        """Start to query."""
        self._thread.start()

    def end(self) -> None:
        """Stop, and raise any failure."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(60)
        self.check()

    def check(self) -> None:
        """Raise any failure."""
        if self._failure is not None:
            raise AssertionError(f"{self.name}: {self._failure}") from self._failure

    def ask(self) -> Seen:
        """Query once, and judge the answer."""
        found = seen(self._read())
        last, self._last = self._last, found
        if last is not None and last.edition == found.edition:
            gone = last.streamed - found.streamed
            assert not gone, f"rows {sorted(gone)[:5]} of edition {found.edition} are gone"
        self.editions[found.edition] += 1
        return found

    def _run(self) -> None:
        try:
            while not self._end.is_set():
                self.ask()
                self._end.wait(self._every_s)
        except BaseException as exc:
            self._failure = exc


def by_daemon(endpoint: str) -> Read:
    """Query a daemon over one connection."""
    client = Client(endpoint)
    return lambda: client.query(NAMESPACE, TABLE, COLUMNS)


def by_store(store: ObjectStore) -> Read:
    """Read the files of the current version, as its manifest lists them at one moment."""

    def read() -> pa.Table:
        manifest = Manifest(store, NAMESPACE, TABLE)
        parts = []
        for add in manifest.load().files.values():
            with store.open(manifest.object_path(add.path)) as file:
                parts.append(pq.read_table(file, columns=COLUMNS))
        return pa.concat_tables(parts)

    return read


def by_duckdb(file: Path) -> Read:
    """Read a follower's copy, and close it at once."""

    def read() -> pa.Table:
        with open_copy(file) as reader:
            query = f'SELECT {", ".join(COLUMNS)} FROM "{TABLE}"'
            rows = reader.execute(query).fetchall()
        return pa.table(dict(zip(COLUMNS, zip(*rows, strict=True), strict=True)))

    return read


def by_spark(spark: SparkSession, region: RegionSettings) -> Read:
    """Read a region's table with Spark."""

    def read() -> pa.Table:
        frame = read_table(spark, region.url, NAMESPACE, TABLE, store_options=region.store_options)
        return frame.select(*COLUMNS).toArrow()

    return read
