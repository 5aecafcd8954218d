"""What the daemon counts: of a flush that has failed it says why, for as long as it is so."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry

from ingester.buffer import BufferHandle, FlushJob
from ingester.daemon.instrumentation import Instrumentation
from ingester.observability.metrics import Metrics
from ingester.observability.rates import RateCounter
from tests.tables.flushes import TABLE, job_of


def _job(first_seq: int) -> FlushJob:
    partition = (TABLE.definition.spec_id, ())
    return job_of(BufferHandle(partition, keyed=False, epoch=1, first_seq=first_seq, segment=1))


def _problem(counts: Instrumentation) -> str | None:
    failure = counts.last_failure
    return None if failure is None else failure[1]


def test_a_failure_is_told_until_its_own_buffer_is_in_files() -> None:
    counts = Instrumentation(Metrics(CollectorRegistry()), RateCounter(time.monotonic))
    failing, other = _job(1), _job(2)
    counts.persist_failed(failing, OSError("no room"))
    counts.persisted(other, (), 0.0, 0.0)
    assert _problem(counts) == "no room"
    counts.persisted(failing, (), 0.0, 0.0)
    assert _problem(counts) is None
    assert counts.failed_attempts == 1
