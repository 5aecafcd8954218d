"""The transformers of one stream, without a daemon: when each is created, called and closed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
import structlog

from ingester.errors import BadRequest, IngesterError, TooSlow
from ingester.transform import SKIP, UNCHANGED, Signal, Transformer
from ingester.write.transform.chain import Chain, FailureLog, Surroundings
from ingester.write.transform.loading import LoadedTransformer
from ingester.write.transform.pool import TransformPool
from tests.drivers.waiting import until
from tests.drivers.wire import numbers

Call = tuple[str, str, int, int]


class Stage:
    """Makes chains of classes that record their calls."""

    def __init__(self, timeout_s: float) -> None:
        self.events: list[str] = []
        self.calls: list[Call] = []
        self.released = threading.Event()
        self.surroundings = Surroundings(
            TransformPool(4, timeout_s),
            1 << 20,
            lambda name, outcome, _, before, after: self.calls.append(
                (name, outcome, before, after)
            ),
            FailureLog(),
        )

    def loaded(
        self,
        name: str,
        transform: Callable[[pa.RecordBatch], Any] = lambda batch: UNCHANGED,
        made: Callable[[], object] = lambda: None,
    ) -> LoadedTransformer:
        events = self.events

        class Noted(Transformer):
            def __init__(self) -> None:
                events.append(f"{name} made")
                made()

            def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch | Signal:
                events.append(f"{name} called")
                answer: pa.RecordBatch | Signal = transform(batch)
                return answer

            def close(self) -> None:
                events.append(f"{name} closed")

        return LoadedTransformer(name, Noted, "1")

    def chain(self, *classes: LoadedTransformer) -> Chain:
        return Chain(self.surroundings, classes, numbers(0, 1).schema)


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage(30.0)
    yield made
    made.released.set()


@pytest.fixture
def hasty() -> Iterator[Stage]:
    """A stage with a short time limit for calls."""
    made = Stage(0.2)
    yield made
    made.released.set()


def test_who_skips_is_the_last_to_be_called(stage: Stage) -> None:
    chain = stage.chain(stage.loaded("a"), stage.loaded("b", lambda batch: SKIP), stage.loaded("c"))
    made = chain(numbers(0, 3))
    chain.close()
    assert made.num_rows == 0
    assert made.schema == chain.schema
    assert stage.events[3:] == ["a called", "b called", "c closed", "b closed", "a closed"]
    assert stage.calls == [("a", "unchanged", 3, 3), ("b", "skipped", 3, 0)]


def test_those_that_were_made_are_closed_when_a_later_one_cannot_be(stage: Stage) -> None:
    def fail() -> None:
        raise OSError("no model")

    with pytest.raises(BadRequest, match="b: OSError: no model"):
        stage.chain(stage.loaded("a"), stage.loaded("b", made=fail))
    assert stage.events == ["a made", "b made", "a closed"]


def test_a_hung_instance_is_closed_by_its_own_call_and_by_nobody_else(hasty: Stage) -> None:
    chain = hasty.chain(hasty.loaded("a", lambda batch: hasty.released.wait() and UNCHANGED))
    with pytest.raises(TooSlow):
        chain(numbers(0, 1))
    chain.close()
    assert hasty.events == ["a made", "a called"]
    hasty.released.set()
    until(lambda: "a closed" in hasty.events, "the close")
    until(lambda: not hasty.surroundings.pool.statistics().hung, "the call")
    assert hasty.events == ["a made", "a called", "a closed"]
    assert hasty.calls == [("a", "timed_out", 1, 0)]


def test_an_instance_that_is_made_too_late_is_closed(hasty: Stage) -> None:
    with pytest.raises(TooSlow):
        hasty.chain(hasty.loaded("a", made=hasty.released.wait))
    hasty.released.set()
    until(lambda: hasty.events == ["a made", "a closed"], "the close")


def test_a_call_that_is_not_begun_because_others_hang_counts_as_refused(hasty: Stage) -> None:
    hung = hasty.loaded("a", lambda batch: hasty.released.wait() and UNCHANGED)
    chains = [hasty.chain(hung) for _ in range(3)]
    for chain in chains:
        with pytest.raises(TooSlow):
            chain(numbers(0, 1))
        chain.close()
    assert hasty.calls[-1] == ("a", "refused", 1, 0)
    assert hasty.events.count("a called") == 2


def test_of_many_failures_one_is_told(stage: Stage) -> None:
    def fail(batch: pa.RecordBatch) -> None:
        raise ValueError("always")

    chain = stage.chain(stage.loaded("a", fail))
    with structlog.testing.capture_logs() as told:
        for _ in range(100):
            with pytest.raises(BadRequest):
                chain(numbers(0, 1))
    (event,) = told
    assert "ValueError: always" in event["error"]
    assert event["runbook"] == "transformer-failed"


def test_an_error_that_was_told_holds_no_batch(stage: Stage) -> None:
    def fail(batch: pa.RecordBatch) -> None:
        held = pa.array(range(100_000))
        raise ValueError(f"holds {len(held)}")

    before = pa.total_allocated_bytes()
    chain = stage.chain(stage.loaded("a", fail))
    errors: list[IngesterError] = []
    for _ in range(10):
        try:
            chain(numbers(0, 1))
        except BadRequest as exc:
            errors.append(exc)
    assert len(errors) == 10
    assert pa.total_allocated_bytes() - before < 800_000
