"""Every kind of query returns the same rows during concurrent work: the log up to one operation.

Writers write and flushes run while readers ask for all rows, for a version and its buffered
tail, or stop reading midway. Every answer names the sequence up to which it holds the log. At
the end, each answer is compared with the rows acknowledged up to that sequence.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.daemon import Daemon
from tests.drivers.wire import Stream, create, describe, extra, path, persist, put, ticket

TABLE = ("it", "truth")
SCHEMA = pa.schema({"w": pa.int64(), "n": pa.int64(), "part": pa.string(), "text": pa.string()})
WRITERS, PARTS = 4, 3
SECONDS = 5.0
MIN_ANSWERS = 10
Row = tuple[int, int]


class Seen:
    """One answer: its sequence in the log, and how often it has each row."""

    def __init__(self, what: str, sequence: int, rows: Counter[Row]) -> None:
        self.what = what
        self.sequence = sequence
        self.rows = rows


class Play:
    """The threads of one run, the acknowledged rows, and the answers."""

    def __init__(self, flight: str) -> None:
        self.flight = flight
        self.ended = threading.Event()
        self.operations: dict[int, list[Row]] = {}
        self.seen: list[Seen] = []
        self.failures: list[BaseException] = []
        self._lock = threading.Lock()

    def run(self) -> None:
        """Run all threads for ``SECONDS``; raises the first error of a thread."""
        work: list[Any] = [lambda w=w: self._write(w) for w in range(WRITERS)]
        work += [self._persist, self._read_all, self._read_tails, self._stall]
        threads = [threading.Thread(target=self._guarded, args=(each,)) for each in work]
        for thread in threads:
            thread.start()
        self.ended.wait(SECONDS)
        self.ended.set()
        for thread in threads:
            thread.join()
        if self.failures:
            raise self.failures[0]

    def _guarded(self, work: Any) -> None:
        try:
            work()
        except BaseException as exc:
            self.failures.append(exc)
            self.ended.set()

    def _write(self, writer: int) -> None:
        numbers = itertools.count()
        with fl.connect(self.flight) as client, Stream(client, path(TABLE), SCHEMA) as stream:
            while not self.ended.is_set():
                rows = [(writer, n) for n in itertools.islice(numbers, 1 + writer * 20)]
                columns = (
                    [w for w, _ in rows],
                    [n for _, n in rows],
                    [f"p{n * 7 % PARTS}" for _, n in rows],
                    [f"text {n * 31 % 101} " * 20 for _, n in rows],
                )
                answer = stream.write(pa.record_batch([*map(pa.array, columns)], schema=SCHEMA))
                with self._lock:
                    self.operations[answer["sequence"]] = rows

    def _persist(self) -> None:
        with fl.connect(self.flight) as client:
            while not self.ended.wait(0.05):
                persist(client, TABLE)

    def _read_all(self) -> None:
        with fl.connect(self.flight) as client:
            while not self.ended.is_set():
                reader = client.do_get(ticket(TABLE))
                self._note("all", reader, _rows(reader.read_all()))

    def _read_tails(self) -> None:
        with fl.connect(self.flight) as client:
            while not self.ended.is_set():
                version = describe(client, TABLE)["manifest_version"]
                files = client.do_get(ticket(TABLE, scope="version", version=version)).read_all()
                try:
                    tail = client.do_get(ticket(TABLE, scope="buffered", version=version))
                    rows = _rows(tail.read_all())
                except fl.FlightUnavailableError as exc:
                    if extra(exc)["code"] != "stale":
                        raise
                    continue
                self._note(f"version {version} and its tail", tail, _rows(files) + rows)

    def _stall(self) -> None:
        """Keep readers paused midway over many flushes."""
        with fl.connect(self.flight) as client:
            readers = []
            while not self.ended.wait(0.5):
                reader = client.do_get(ticket(TABLE))
                first = reader.read_chunk().data
                readers.append((reader, _rows(pa.Table.from_batches([first]))))
            for reader, rows in readers:
                self._note("all, in two goes", reader, rows + _rows(reader.read_all()))

    def _note(self, what: str, reader: Any, rows: Counter[Row]) -> None:
        sequence = int(reader.schema.metadata[b"snapshot_sequence"])
        self.seen.append(Seen(what, sequence, rows))


def _rows(table: pa.Table) -> Counter[Row]:
    return Counter(zip(table["w"].to_pylist(), table["n"].to_pylist(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("sort_by", [["text"], []])
def test_every_answer_is_the_log_up_to_its_sequence(sort_by: list[str], tmp_path: Path) -> None:
    with Daemon.start(tmp_path / "data") as daemon:
        with fl.connect(daemon.flight) as client:
            create(client, TABLE, SCHEMA, partition_by=["identity(part)"], sort_by=sort_by)
            first = pa.record_batch([[-1], [0], ["p0"], [""]], schema=SCHEMA)
            (answer,) = put(client, TABLE, first)
        play = Play(daemon.flight)
        play.operations[answer["sequence"]] = [(-1, 0)]
        play.run()
    for seen in play.seen:
        due: Counter[Row] = Counter()
        for sequence, rows in play.operations.items():
            if sequence <= seen.sequence:
                due.update(rows)
        missing, extra_rows = due - seen.rows, seen.rows - due
        assert not missing, f"{seen.what} up to {seen.sequence} lacks {len(missing)} rows"
        assert not extra_rows, f"{seen.what} up to {seen.sequence} has {len(extra_rows)} too many"
    kinds = Counter(seen.what.split()[0] for seen in play.seen)
    assert kinds["all"] + kinds["all,"] >= MIN_ANSWERS, kinds
    assert kinds["version"] >= MIN_ANSWERS, kinds
    assert kinds["all,"] >= 3, kinds
