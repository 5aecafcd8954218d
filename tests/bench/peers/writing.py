"""The program of a writing process: open the store, prepare some writers, and run them at once.

Connections, tables, encoded batches and each writer's first batch precede the clock, as with the
ingester's own clients (:mod:`tests.bench.streams`). The first batch is acknowledged but not
counted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np

from tests.bench.children import answer_commands
from tests.bench.peers.peer import Settle, Store, WriteJob, Writer
from tests.bench.rows import make_batches
from tests.bench.streams import PutResult

_BATCHES = 64
_ROWS = 40_000
"""Upper bounds of one writer's different batches and rows in memory."""


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a job for one process; its writers are numbered from ``first_writer``."""

    job: WriteJob
    writers: int
    first_writer: int


def main(pipe: Connection, open_store: Callable[[str], Store], address: str) -> None:
    """Reply with the store's version, then handle commands until the pipe closes."""
    process: _Process | None = None

    def act(message: Share | Settle | str | None) -> object:
        nonlocal process
        if process is None:
            process = _Process(open_store(address))
            return process.version
        return process.act(message)

    answer_commands(pipe, act)


class _Process:
    """One message prepares a share, the next, ``None``, starts it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._prepared: list[_Turns] = []
        self.version = store.version

    def act(self, message: Share | Settle | str | None) -> object:
        """Handle a command: a name creates a table, a share is prepared, ``None`` starts it."""
        if isinstance(message, Settle):
            began = time.monotonic()
            self._store.settle()
            return time.monotonic() - began
        if isinstance(message, str):
            self._store.create(message)
            return "created"
        if message is not None:
            self._prepared = _prepare(self._store, message)
            return "ready"
        turns, self._prepared = self._prepared, []
        return _run(turns)


class _Turns:
    """One writer, which sends each batch when the one before it is acknowledged."""

    def __init__(self, writer: Writer, job: WriteJob, seed: int) -> None:
        self._writer = writer
        self._job = job
        count = max(2, min(_BATCHES, _ROWS // job.rows))
        self._encoded = [writer.encode(b) for b in make_batches(job.rows, count, seed)]
        writer.write(self._encoded[0])
        self.rows = 0
        self.ended = 0.0
        self.latencies: list[float] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Write until the time or the rows are used up."""
        try:
            self._write()
            self._writer.close()
        except BaseException as exc:
            self.failure = exc

    def _write(self) -> None:
        job, encoded, latencies = self._job, self._encoded, self.latencies
        write, clock, count = self._writer.write, time.monotonic, len(self._encoded)
        most = max(1, job.max_rows // job.writers // job.rows)
        began = clock()
        until = began + job.seconds
        while began < until and len(latencies) < most:
            write(encoded[len(latencies) % count])
            ended = clock()
            latencies.append(ended - began)
            began = ended
        self.ended = began
        self.rows = len(latencies) * job.rows


def _prepare(store: Store, share: Share) -> list[_Turns]:
    numbers = range(share.first_writer, share.first_writer + share.writers)
    return [_Turns(store.writer(share.job.table), share.job, number) for number in numbers]


def _run(turns: list[_Turns]) -> PutResult:
    began = time.monotonic()
    threads = [threading.Thread(target=each.run) for each in turns]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in turns:
        if each.failure is not None:
            raise each.failure
    return PutResult(
        rows=sum(each.rows for each in turns),
        batches=sum(len(each.latencies) for each in turns),
        began=began,
        ended=max(each.ended for each in turns),
        latencies=np.array([latency for each in turns for latency in each.latencies]),
    )
