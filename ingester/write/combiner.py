"""Batches are made ready one at a time, although many threads bring them.

Each call into Arrow lets go of the interpreter, and in a crowd has to wait for it again: eight
threads that make their batches ready side by side wake each other more than they work. So there is
one place. Who finds it free does its own work there, with no other thread in between; who does not
leaves the work to a thread that takes everything that waits, and looks at batches of one kind
together: all are valid, all are of one partition.

Law of this file: a caller gets what its own work returned or raised, whoever did it, and waits for
no more than one round of small batches. Large ones keep nobody waiting: they are made ready apart,
and so are those of a stream whose last one took long, for its many partitions or what it stood for.
What is left to the thread is done in the order in which it came.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Generic, NamedTuple, Protocol, TypeVar, cast

import pyarrow as pa

from ingester.errors import Stopping
from ingester.schema.validation import validate_fully
from persist.partitioning import PartitionSpec, PartitionValues, shared_partition

T = TypeVar("T")


class Kind(NamedTuple):
    """What batches have in common that are looked at together."""

    table: tuple[str, str]
    schema_number: int
    spec: PartitionSpec | None
    """How they are split; None where that cannot be told from the columns that were sent."""


class Known(NamedTuple):
    """What is known of a batch before it is made ready."""

    valid: bool = False
    """It was validated in full."""
    partition: PartitionValues | None = None
    """All of its rows belong there."""
    most_bytes: int | None = None
    """It has no more, in whatever form, and may have as many. Each call of Arrow that is not made
    spares two changes of the thread that runs."""


NOTHING = Known()
Work = Callable[[Known], T]
"""Makes a batch ready."""
Then = Callable[[T | None, BaseException | None], None]
"""Takes what the work returned, or raised. It may raise ``Stopping`` and nothing else."""

SMALL_BYTES = 1 << 20
LONG_S = 0.002
"""Of processor time; some ten times what a batch of :data:`SMALL_BYTES` in one partition takes."""
ROUND = 32
"""Batches that are made ready in one turn."""


class Pace:
    """Whether a stream's last batch took long. One for each stream."""

    def __init__(self) -> None:
        self.long = False

    def run(self, work: Work[T], known: Known) -> T:
        """Do a stream's work, and see how long it takes."""
        began = time.thread_time()
        try:
            return work(known)
        finally:
            self.long = time.thread_time() - began > LONG_S


class _Request(Generic[T]):
    """One batch that waits to be made ready."""

    def __init__(
        self,
        batch: pa.RecordBatch,
        kind: Kind,
        pace: Pace,
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
        with suppress(Stopping):  # nobody waits for it any more
            self._then(self.result, self.error)
        self._pending.release()

    def wait_until_over(self) -> None:
        """Return when it was run, and what had to follow is done."""
        with self._pending:
            pass

    def wait(self) -> T:
        self.wait_until_over()
        if self.error is not None:
            raise self.error
        return cast(T, self.result)


class Pending(Protocol):
    """A batch that was passed on."""

    def wait_until_over(self) -> None:
        """Return when it is ready, or refused, and ``then`` was called."""


class Combiner:
    """The place, and the thread that works there for others. Any thread."""

    def __init__(self) -> None:
        self._place = threading.Lock()
        self._waiting: SimpleQueue[_Request[object]] = SimpleQueue()
        self._count = 0
        self._count_lock = threading.Lock()
        # It ends with the process: streams may be open until then.
        threading.Thread(target=self._serve, name="preparer", daemon=True).start()

    @property
    def waiting(self) -> int:
        """Batches that the thread has to make ready."""
        return self._count

    @property
    def busy(self) -> bool:
        """Whether whoever comes now has to wait."""
        return self._count > 0 or self._place.locked()

    def prepare(self, batch: pa.RecordBatch, kind: Kind, pace: Pace, work: Work[T]) -> T:
        """What ``work`` returns or raises. It must not wait for anything."""
        if not self.takes(batch, pace):
            return pace.run(work, NOTHING)
        # Not past those who wait already.
        if self._count == 0 and self._place.acquire(blocking=False):
            try:
                return pace.run(work, NOTHING)
            finally:
                self._place.release()
        request = _Request(batch, kind, pace, work)
        self._leave(cast(_Request[object], request))
        return request.wait()

    def takes(self, batch: pa.RecordBatch, pace: Pace) -> bool:
        """Whether the batch is one for the place."""
        return not pace.long and batch.get_total_buffer_size() <= SMALL_BYTES

    def pass_on(
        self, batch: pa.RecordBatch, kind: Kind, pace: Pace, work: Work[T], then: Then[T]
    ) -> Pending:
        """Leave a batch that it `takes` to the thread, which calls ``then``; without waiting."""
        request = _Request(batch, kind, pace, work, then)
        self._leave(cast(_Request[object], request))
        return request

    def _leave(self, request: _Request[object]) -> None:
        with self._count_lock:
            self._count += 1
        self._waiting.put(request)

    def _serve(self) -> None:
        while True:
            requests = [self._waiting.get()]
            with self._place:
                try:
                    while len(requests) < ROUND:
                        requests.append(self._waiting.get_nowait())
                except Empty:
                    pass
                _run_all(requests)
            with self._count_lock:
                self._count -= len(requests)
            del requests  # not kept until the next one comes


def _run_all(requests: list[_Request[object]]) -> None:
    kinds: defaultdict[Kind, list[pa.RecordBatch]] = defaultdict(list)
    for request in requests:
        kinds[request.kind].append(request.batch)
    known = {kind: _known(batches, kind) for kind, batches in kinds.items()}
    for request in requests:
        request.run(known[request.kind])


def _known(batches: list[pa.RecordBatch], kind: Kind) -> Known:
    """What is true of all; what may be wrong is found out one by one."""
    if len(batches) == 1:
        return NOTHING
    try:
        validate_fully(batches)
        if kind.spec is None:
            return Known(True)
        return Known(True, shared_partition(pa.Table.from_batches(batches), kind.spec))
    except Exception:  # whatever it is, it comes again where it can be told whose it is
        return NOTHING
