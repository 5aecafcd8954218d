"""A few client processes that write or read concurrently, and their combined result.

All processes are ready before any of them begins. A rate is all acknowledged rows, divided by
the time from the first process's start to the last one's end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection

import numpy as np
import numpy.typing as npt

from tests.bench.children import Child, answer_commands
from tests.bench.scans import ScanJob, ScanResult, scan
from tests.bench.shipped import ShippedStream
from tests.bench.streams import (
    PutJob,
    PutResult,
    WritingStream,
    prepare,
    write,
)

PROCESSES = 4


@dataclass(frozen=True, slots=True)
class Written:
    """The combined result of all writers."""

    rows: int
    batches: int
    seconds: float
    latencies: npt.NDArray[np.float64]
    """Seconds per batch; empty for pipelined writers without a pace."""
    answered: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    """Arrival times (monotonic clock) of answers; empty for writers that wait for each answer."""

    @property
    def rows_per_s(self) -> float:
        """Acknowledged rows a second."""
        return self.rows / self.seconds

    @classmethod
    def together(cls, parts: Sequence[Written]) -> Written:
        """Combine the results of consecutive jobs, at least one."""
        return cls(
            rows=sum(part.rows for part in parts),
            batches=sum(part.batches for part in parts),
            seconds=sum(part.seconds for part in parts),
            latencies=np.concatenate([part.latencies for part in parts]),
            answered=np.concatenate([part.answered for part in parts]),
        )


class _Client:
    """The child's side: one message prepares a job, the second starts it."""

    def __init__(self) -> None:
        self._prepared: tuple[PutJob, list[WritingStream] | list[ShippedStream]] | None = None

    def act(self, message: PutJob | ScanJob | None) -> object:
        """Prepare a job; ``None`` starts it. Scans start at once."""
        if isinstance(message, ScanJob):
            return scan(message)
        if message is not None:
            self._prepared = (message, prepare(message))
            return "ready"
        assert self._prepared is not None
        (job, streams), self._prepared = self._prepared, None
        return write(streams, job)


def _main(pipe: Connection) -> None:
    answer_commands(pipe, _Client().act)


class Clients:
    """The client processes of a run."""

    def __init__(self, processes: int = PROCESSES) -> None:
        self._children = [Child(_main) for _ in range(processes)]

    def __enter__(self) -> Clients:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.end()

    def write(self, job: PutJob, meanwhile: Callable[[], object] = lambda: None) -> Written:
        """Run a job with its streams spread over the processes.

        Args:
            meanwhile: Called in this process once they write.

        Raises:
            ChildFailed: A batch was refused, or an answer is missing.
        """
        chosen = self._children[: job.streams]
        share, more = divmod(job.streams, len(chosen))
        for number, child in enumerate(chosen):
            streams = share + (number < more)
            child.send(
                replace(
                    job, streams=streams, seed=number, max_rows=max(1, job.max_rows // job.streams)
                )
            )
        for child in chosen:
            child.receive()
        for child in chosen:
            child.send(None)
        meanwhile()
        results: list[PutResult] = [child.receive() for child in chosen]
        return Written(
            rows=sum(result.rows for result in results),
            batches=sum(result.batches for result in results),
            seconds=max(r.ended for r in results) - min(r.began for r in results),
            latencies=np.concatenate([result.latencies for result in results]),
            answered=np.concatenate([result.answered for result in results]),
        )

    def scan(self, job: ScanJob) -> ScanResult:
        """Read an answer with readers that are spread over the processes."""
        chosen = self._children[: job.readers]
        share, more = divmod(job.readers, len(chosen))
        for number, child in enumerate(chosen):
            child.send(replace(job, readers=share + (number < more)))
        results: list[ScanResult] = [child.receive() for child in chosen]
        return ScanResult(
            rows=sum(result.rows for result in results),
            first_s=max(result.first_s for result in results),
            began=min(result.began for result in results),
            ended=max(result.ended for result in results),
        )
