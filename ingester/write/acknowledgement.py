"""The acknowledgement of an operation, given once: it is durable and visible, or never will be.

made ─▶ queued for the log ─▶ stored ─▶ applied to the buffers ─▶ finished
                                │                                    ├ released: admission
                                │ answered here, unless the loop     ├ answered, if not before
                                └ has decided about it               └ repeats hear the outcome
"""

from __future__ import annotations

import time

import msgspec

from ingester.config.settings import Level
from ingester.dml.operation import Operation
from ingester.observability.metrics import Metrics
from ingester.origins.origin_table import Fates
from wal import Entry, OrderedSession, Route


class PutAnswer(msgspec.Struct, frozen=True):
    """The metadata of one PutResult. ``sequence`` and ``epoch`` are the daemon's own."""

    accepted: bool
    sequence: int
    epoch: int
    duplicate: bool = False
    memory_sequence: int | None = None
    durable_sequence: int | None = None
    files_sequence: int | None = None
    first: bool = False
    ack: Level | msgspec.UnsetType = msgspec.UNSET
    """The level of this acknowledgement; not in answers that acknowledge no rows."""
    traces: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether batches of the stream may name their span; in the first answer only."""


class Acknowledgement:
    """Follows one operation from its submission on; subclasses answer those who wait.

    Args:
        metrics: None where the operation is no client's write.
    """

    __slots__ = (
        "_began",
        "_first_of",
        "_metrics",
        "answered_when_stored",
        "at_store",
        "operation",
        "routes",
        "sessions",
        "shipped",
    )

    def __init__(self, operation: Operation, metrics: Metrics | None) -> None:
        self.operation = operation
        self._metrics = metrics
        self.sessions: tuple[OrderedSession, ...] = ()
        """The sessions that the operation belongs to."""
        self.answered_when_stored = False
        """Whether those who wait are answered before the operation is applied."""
        self.routes: tuple[Route, ...] = ()
        """The route of the operation's table."""
        self.at_store = False
        """Whether they are answered when the store has the operation."""
        self.shipped = False
        """Whether the store has the operation, once it is answered."""
        self._first_of: list[tuple[Fates, int]] = []
        self._began = time.perf_counter()
        for trace in operation.traces:
            trace.submitted()

    @property
    def whose(self) -> object:
        """Who submits the operation; see ``Fates``."""
        return None

    def is_first_copy(self, fates: Fates, sequence: int) -> None:
        """Note that repeats of a sequence wait in ``fates`` for the operation's outcome."""
        self._first_of.append((fates, sequence))

    def stored(self, entry: Entry) -> None:
        """Note that the operation is in the log. In the thread that writes it."""

    def finish(self, error: BaseException | None) -> None:
        """Answer: the operation is durable and visible, or refused for this error. On the loop."""
        operation = self.operation
        for fates, sequence in self._first_of:
            fates.end(sequence, error)
        if operation.traces:
            self._end_traces(error)
        if error is None and self._metrics is not None:
            self._count(self._metrics)
        self.answer(error)

    def answer(self, error: BaseException | None) -> None:
        """Answer those who wait for the operation."""
        raise NotImplementedError

    def _count(self, metrics: Metrics) -> None:
        operation = self.operation
        metrics.acknowledged(time.perf_counter() - self._began, operation.operations)
        table = metrics.table(*operation.table)
        if operation.duplicate:
            table.saw_duplicate()
            return
        table.wrote(operation.rows, operation.nbytes, operation.operations)
        metrics.rates.add(
            rows=operation.rows, nbytes=operation.nbytes, operations=operation.operations
        )

    def _end_traces(self, error: BaseException | None) -> None:
        operation = self.operation
        attributes = {
            "ingester.sequence": operation.seq,
            "ingester.epoch": operation.epoch,
            "ingester.duplicate": operation.duplicate,
            "ingester.partitions": len(operation.parts),
            "ingester.coalesced": operation.operations,
        }
        for trace in operation.traces:
            at_ns = trace.stored_ns if self.answered_when_stored else 0
            trace.answered(error, attributes, at_ns)
