"""The place where batches are made ready: whose result goes to whom, whatever the crowd."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pytest

from ingester.flight.preparing import LONG_S, SMALL_BYTES, Pace, Preparer

THREADS = 8
EACH = 60


def batch(number: int) -> pa.RecordBatch:
    return pa.record_batch({"n": [number, number], "s": [f"{number}", "é"]})


def cut_short() -> pa.RecordBatch:
    """One of its text's offsets leads behind its bytes."""
    offsets, data = pa.array([0, 4000, 2], pa.int32()).buffers()[1], pa.py_buffer(b"ab")
    text = pa.StringArray.from_buffers(2, offsets, data)
    return pa.RecordBatch.from_arrays([pa.array([1, 2]), text], ["n", "s"])


def not_text() -> pa.RecordBatch:
    return pa.record_batch({"n": [1], "s": pa.array([b"\xff"], pa.binary()).view(pa.string())})


def checked(each: pa.RecordBatch) -> Callable[[bool], int]:
    """What DoPut does: validate, unless that was done; then work with the values."""

    def work(valid: bool) -> int:
        if not valid:
            each.validate(full=True)
        return sum(each.column("n").to_pylist())

    return work


@pytest.mark.parametrize("bad", [None, cut_short, not_text])
def test_each_gets_what_its_own_batch_came_to(bad: Callable[[], pa.RecordBatch] | None) -> None:
    preparer = Preparer()
    wrong: list[object] = []
    together = threading.Barrier(THREADS)

    def run(thread: int) -> None:
        together.wait()
        pace = Pace()
        for number in range(EACH):
            if bad is not None and thread == 3 and number % 5 == 0:
                each = bad()
                try:
                    wrong.append(preparer.prepare(each, pace, checked(each)))
                except pa.ArrowInvalid:
                    continue
            each = batch(thread * EACH + number)
            found = preparer.prepare(each, pace, checked(each))
            if found != 2 * (thread * EACH + number):
                wrong.append(found)

    threads = [threading.Thread(target=run, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert wrong == []


class Held:
    """A preparer whose place is taken until ``free``, and what waits for it."""

    def __init__(self) -> None:
        self.preparer = Preparer()
        self._free = threading.Event()
        self._taken = threading.Event()
        self._threads = [threading.Thread(target=self._hold)]
        self._threads[0].start()
        assert self._taken.wait(20)

    def _hold(self) -> None:
        def work(valid: bool) -> None:
            self._taken.set()
            assert self._free.wait(20)

        self.preparer.prepare(batch(0), Pace(), work)

    def bring(self, each: pa.RecordBatch, work: Callable[[bool], object]) -> None:
        """From a thread of its own."""
        thread = threading.Thread(target=lambda: self.preparer.prepare(each, Pace(), work))
        thread.start()
        self._threads.append(thread)

    def free(self) -> None:
        self._free.set()
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()


def _say(said: list[tuple[int, bool]], number: int, valid: bool) -> None:
    said.append((number, valid))


def test_what_waits_is_validated_together_and_done_in_turn() -> None:
    held = Held()
    said: list[tuple[int, bool]] = []
    for number in range(4):
        held.bring(batch(number), partial(_say, said, number))
        while held.preparer.waiting <= number:
            pass
    assert said == []
    held.free()
    assert [number for number, _ in said] == [0, 1, 2, 3]
    # The thread may have taken the first of them alone.
    assert {valid for _, valid in said[1:]} == {True}


def test_one_bad_batch_makes_no_other_pass_for_valid() -> None:
    held = Held()
    said: list[bool] = []
    for each in (batch(1), cut_short(), batch(2), not_text()):
        held.bring(each, said.append)
    while held.preparer.waiting < 4:
        pass
    held.free()
    assert said == [False] * 4


def test_a_large_batch_waits_for_nobody() -> None:
    held = Held()
    large = pa.record_batch({"s": ["x" * SMALL_BYTES]})
    assert held.preparer.prepare(large, Pace(), lambda valid: valid) is False
    held.free()


def _busy(valid: bool) -> bool:
    until = time.thread_time() + 2 * LONG_S
    while time.thread_time() < until:
        pass
    return valid


def test_after_a_batch_that_took_long_a_stream_waits_for_nobody_until_one_is_quick() -> None:
    pace = Pace()
    Preparer().prepare(batch(1), pace, _busy)
    held = Held()
    # Would wait for the place that is held, were the stream not known to be slow.
    assert held.preparer.prepare(batch(2), pace, _busy) is False
    assert held.preparer.prepare(batch(3), pace, lambda valid: valid) is False
    assert not pace.long
    held.free()
