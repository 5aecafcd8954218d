"""The flush counts keep the reason of a failure until the buffer is in files."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from ingester.buffer import BufferHandle, FlushJob
from ingester.flush.flusher import FlushCounts
from ingester.observability.metrics import Metrics
from ingester.observability.status import PersistStatus
from tests.tables.flushes import TABLE, job_of


def _job(first_seq: int) -> FlushJob:
    partition = (TABLE.definition.spec_id, ())
    return job_of(BufferHandle(partition, keyed=False, epoch=1, first_seq=first_seq, segment=1))


def _problem(counts: FlushCounts) -> str | None:
    failure = counts.last_failure
    return None if failure is None else failure[1]


def test_a_failure_is_told_until_its_own_buffer_is_in_files() -> None:
    counts = FlushCounts(Metrics(CollectorRegistry()))
    failing, other = _job(1), _job(2)
    counts.failed(failing, OSError("no room"))
    counts.flushed(other, (), 0.0, 0.0)
    assert _problem(counts) == "no room"
    counts.flushed(failing, (), 0.0, 0.0)
    assert _problem(counts) is None
    assert counts.add_to(PersistStatus()).failed_attempts == 1
