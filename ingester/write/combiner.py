"""Prepares batches of many threads one at a time: flat combining.

Each call into Arrow releases the interpreter lock and waits for it again in a crowd: eight threads
that prepare side by side wake each other more than they work. So one thread prepares at a time. A
caller that finds the combiner idle does its own work in its own thread. Any other caller leaves its
work to the combiner's thread, which takes up to :data:`ROUND` waiting batches and checks batches of
one kind in one call: whether all are valid, and whether all are of one partition.

A caller gets the result or error of its own work, whichever thread did it, and waits for at most
one round of small batches. Large batches are prepared outside of the combiner, as are those of a
stream whose last batch took long (many partitions, or values that expand). A stream's first batch
is taken only if it has few rows. The combiner's thread works in the order in which batches came
(tests/write/test_combiner).

Source: D. Hendler and others, "Flat Combining and the Synchronization-Parallelism Tradeoff" (2010).
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Generic, NamedTuple, TypeVar, cast

import pyarrow as pa

from ingester.errors import Stopping
from ingester.schema.normalise import validate_fully
from persist.partitioning import PartitionSpec, PartitionValues, shared_partition

T = TypeVar("T")


class Kind(NamedTuple):
    """The kind of a batch: batches of one kind can be checked in one call."""

    table: tuple[str, str]
    schema_number: int
    spec: PartitionSpec | None
    """The partition spec; None where rows cannot be split by the columns that were sent."""


class Known(NamedTuple):
    """Facts known of a batch before it is prepared.

    Each call into Arrow that is saved saves two thread switches.
    """

    valid: bool = False
    """Whether the batch was validated in full."""
    partition: PartitionValues | None = None
    """The partition of all rows."""
    most_bytes: int | None = None
    """A bound of the batch's size in any form, which is within the limits."""


NOTHING = Known()
Work = Callable[[Known], T]
"""A function that prepares a batch, given the facts that are known of it."""
Then = Callable[[T | None, BaseException | None], None]
"""A callback that takes the work's result or error. It may raise nothing but ``Stopping``."""

SMALL_BYTES = 1 << 20
FEW_ROWS = 256
"""If each row is of its own partition, they delay others by about 20 ms."""
LONG_S = 0.002
"""A long processor time: about ten times that of :data:`SMALL_BYTES` in one partition."""
ROUND = 32
"""The most batches that are prepared in one round."""


class PreparationPace:
    """A stream's pace: whether its last batch took long to prepare. One for each stream."""

    def __init__(self) -> None:
        self.long: bool | None = None
        """None while there was no batch."""

    def run(self, work: Work[T], known: Known) -> T:
        """Do a stream's work, and measure how long it takes."""
        began = time.thread_time()
        try:
            return work(known)
        finally:
            self.long = time.thread_time() - began > LONG_S


class CombinerRequest(Generic[T]):
    """One batch that waits to be prepared."""

    def __init__(
        self,
        batch: pa.RecordBatch,
        kind: Kind,
        pace: PreparationPace,
        work: Work[T],
        then: Then[T] = lambda result, error: None,
    ) -> None:
        self.batch = batch
        self.kind = kind
        self._pace = pace
        self._work = work
        self._then = then
        self.error: BaseException | None = None
        self.result: T | None = None
        self._pending = threading.Lock()
        self._pending.acquire()

    def run(self, known: Known) -> None:
        try:
            self.result = self._pace.run(self._work, known)
        except BaseException as exc:
            self.error = exc
        with suppress(Stopping):  # no caller waits for it now
            self._then(self.result, self.error)
        self._pending.release()

    def wait_until_over(self) -> None:
        """Return when the batch is prepared or refused and ``then`` was called."""
        with self._pending:
            pass

    def wait(self) -> T:
        self.wait_until_over()
        if self.error is not None:
            raise self.error
        return cast(T, self.result)


class Combiner:
    """Prepares batches, one at a time, in its callers' threads and in its own. Any thread."""

    def __init__(self) -> None:
        self._working = threading.Lock()
        self._waiting: SimpleQueue[CombinerRequest[object]] = SimpleQueue()
        self._count = 0
        self._count_lock = threading.Lock()
        # The thread ends with the process: streams may be open until then.
        threading.Thread(target=self._serve, name="combiner", daemon=True).start()

    @property
    def waiting(self) -> int:
        """The number of batches waiting for the combiner's thread."""
        return self._count

    @property
    def busy(self) -> bool:
        """Whether a batch that comes now would wait."""
        return self._count > 0 or self._working.locked()

    def prepare(self, batch: pa.RecordBatch, kind: Kind, pace: PreparationPace, work: Work[T]) -> T:
        """Return or raise what ``work`` does, which must not wait for anything."""
        if not self.takes(batch, pace):
            return pace.run(work, NOTHING)
        # A batch does not overtake those that wait already.
        if self._count == 0 and self._working.acquire(blocking=False):
            try:
                return pace.run(work, NOTHING)
            finally:
                self._working.release()
        request = CombinerRequest(batch, kind, pace, work)
        return self._leave(request).wait()

    def takes(self, batch: pa.RecordBatch, pace: PreparationPace) -> bool:
        """Whether the batch is small enough, and of a stream that is fast enough."""
        if pace.long is None and batch.num_rows > FEW_ROWS:
            return False
        return not pace.long and batch.get_total_buffer_size() <= SMALL_BYTES

    def pass_on(
        self, batch: pa.RecordBatch, kind: Kind, pace: PreparationPace, work: Work[T], then: Then[T]
    ) -> CombinerRequest[T]:
        """Leave a batch that ``takes`` accepts to the combiner's thread, which calls ``then``."""
        return self._leave(CombinerRequest(batch, kind, pace, work, then))

    def _leave(self, request: CombinerRequest[T]) -> CombinerRequest[T]:
        with self._count_lock:
            self._count += 1
        self._waiting.put(cast(CombinerRequest[object], request))
        return request

    def _serve(self) -> None:
        while True:
            requests = [self._waiting.get()]
            with self._working:
                try:
                    while len(requests) < ROUND:
                        requests.append(self._waiting.get_nowait())
                except Empty:
                    pass
                _run_all(requests)
            with self._count_lock:
                self._count -= len(requests)
            del requests  # not kept until the next one comes


def _run_all(requests: list[CombinerRequest[object]]) -> None:
    kinds: defaultdict[Kind, list[pa.RecordBatch]] = defaultdict(list)
    for request in requests:
        kinds[request.kind].append(request.batch)
    known = {kind: _known(batches, kind) for kind, batches in kinds.items()}
    for request in requests:
        request.run(known[request.kind])


def _known(batches: list[pa.RecordBatch], kind: Kind) -> Known:
    """Return facts true of all these batches; NOTHING if they have to be checked one by one."""
    if len(batches) == 1:
        return NOTHING
    try:
        validate_fully(batches)
        if kind.spec is None:
            return Known(True)
        return Known(True, shared_partition(pa.Table.from_batches(batches), kind.spec))
    except Exception:  # it is raised again where its batch is known
        return NOTHING
