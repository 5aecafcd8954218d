"""The combiner gives each result to the caller whose batch it was, under any contention."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pytest

from ingester.errors import Stopping
from ingester.write.combiner import (
    FEW_ROWS,
    LONG_S,
    NOTHING,
    SMALL_BYTES,
    Combiner,
    Kind,
    Known,
    PreparationPace,
)
from persist.partitioning import PartitionSpec
from tests.write.held_combiner import PLAIN, Held

THREADS = 8
EACH = 60
DAILY = Kind(("ns", "daily"), 1, PartitionSpec.parse(["day(time)"]))
DAY_US = 86_400_000_000


def batch(number: int) -> pa.RecordBatch:
    return pa.record_batch({"n": [number, number], "s": [f"{number}", "é"]})


def dated(*days: int | None) -> pa.RecordBatch:
    times = [None if day is None else day * DAY_US + 5 for day in days]
    return pa.record_batch({"time": pa.array(times, pa.timestamp("us", "UTC"))})


def cut_short() -> pa.RecordBatch:
    """A batch with a text column whose last offset points past the data."""
    offsets, data = pa.array([0, 4000, 2], pa.int32()).buffers()[1], pa.py_buffer(b"ab")
    text = pa.StringArray.from_buffers(2, offsets, data)
    return pa.RecordBatch.from_arrays([pa.array([1, 2]), text], ["n", "s"])


def not_text() -> pa.RecordBatch:
    return pa.record_batch({"n": [1], "s": pa.array([b"\xff"], pa.binary()).view(pa.string())})


def checked(each: pa.RecordBatch) -> Callable[[Known], int]:
    """The work of DoPut: validate unless already validated, then use the values."""

    def work(known: Known) -> int:
        if not known.valid:
            each.validate(full=True)
        return sum(each.column("n").to_pylist())

    return work


@pytest.mark.parametrize("bad", [None, cut_short, not_text])
def test_each_gets_what_its_own_batch_came_to(bad: Callable[[], pa.RecordBatch] | None) -> None:
    combiner = Combiner()
    wrong: list[object] = []
    together = threading.Barrier(THREADS)

    def run(thread: int) -> None:
        together.wait()
        pace = PreparationPace()
        for number in range(EACH):
            if bad is not None and thread == 3 and number % 5 == 0:
                each = bad()
                try:
                    wrong.append(combiner.prepare(each, PLAIN, pace, checked(each)))
                except pa.ArrowInvalid:
                    continue
            each = batch(thread * EACH + number)
            found = combiner.prepare(each, PLAIN, pace, checked(each))
            if found != 2 * (thread * EACH + number):
                wrong.append(found)

    threads = [threading.Thread(target=run, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert wrong == []


def _say(said: list[tuple[int, Known]], number: int, known: Known) -> None:
    said.append((number, known))


def test_what_waits_is_validated_together_and_done_in_turn() -> None:
    held = Held()
    said: list[tuple[int, Known]] = []
    for number in range(4):
        held.bring(batch(number), partial(_say, said, number))
        while held.combiner.waiting <= number:
            pass
    assert said == []
    held.free()
    assert [number for number, _ in said] == [0, 1, 2, 3]
    # The first batch may have been taken alone.
    assert {known for _, known in said[1:]} == {Known(True, ())}


def _told(each: pa.RecordBatch, *others: pa.RecordBatch, kind: Kind = DAILY) -> Known:
    """The facts known about a batch behind these others, with a batch of another kind between."""
    held = Held()
    said: list[tuple[int, Known]] = []
    waiting = [(dated(7), kind), *((one, kind) for one in others), (batch(1), PLAIN), (each, kind)]
    for number, (one, its_kind) in enumerate(waiting):
        held.bring(one, partial(_say, said, number), its_kind)
        while held.combiner.waiting <= number:
            pass
    held.free()
    return dict(said)[len(waiting) - 1]


def test_all_of_a_kind_are_known_to_be_of_one_partition_where_they_are() -> None:
    assert _told(dated(7), dated(7, 7)) == Known(True, ("1970-01-08",))
    assert _told(dated(7), dated(7, 8)) == Known(True, None)
    assert _told(dated(7, None), dated(7)) == Known(True, None)
    assert _told(dated(), dated(7)) == Known(True, ("1970-01-08",))
    assert _told(dated(7), dated(7), kind=DAILY._replace(spec=None)) == Known(True, None)
    # The partition column is missing, or its type has no known partition.
    other = DAILY._replace(spec=PartitionSpec.parse(["day(t)"]))
    assert _told(dated(7), dated(7), kind=other) == Known(True, None)
    hosts = DAILY._replace(spec=PartitionSpec.parse(["identity(time)"]))
    assert _told(dated(7), dated(7), kind=hosts) == Known(True, None)


def test_one_bad_batch_makes_no_other_pass_for_valid() -> None:
    held = Held()
    said: list[Known] = []
    for each in (batch(1), cut_short(), batch(2), not_text()):
        held.bring(each, said.append)
    while held.combiner.waiting < 4:
        pass
    held.free()
    assert said == [NOTHING] * 4


def test_a_large_batch_waits_for_nobody() -> None:
    held = Held()
    large = pa.record_batch({"s": ["x" * SMALL_BYTES]})
    assert held.combiner.prepare(large, PLAIN, PreparationPace(), lambda known: known) == NOTHING
    held.free()


def _busy(known: Known) -> Known:
    until = time.thread_time() + 2 * LONG_S
    while time.thread_time() < until:
        pass
    return known


def test_the_first_batch_of_a_stream_waits_for_nobody_where_it_has_many_rows() -> None:
    held = Held()
    many = pa.record_batch({"n": pa.array(range(FEW_ROWS + 1))})
    pace = PreparationPace()
    assert held.combiner.prepare(many, PLAIN, pace, lambda known: "done") == "done"
    assert pace.long is False and held.combiner.takes(many, pace)
    held.free()


def test_after_a_batch_that_took_long_a_stream_waits_for_nobody_until_one_is_quick() -> None:
    pace = PreparationPace()
    Combiner().prepare(batch(1), PLAIN, pace, _busy)
    held = Held()
    # This call would wait for the busy combiner if the stream were not marked as slow.
    assert held.combiner.prepare(batch(2), PLAIN, pace, _busy) == NOTHING
    assert held.combiner.prepare(batch(3), PLAIN, pace, lambda known: known) == NOTHING
    assert not pace.long
    held.free()


def test_what_is_passed_on_is_over_in_the_order_in_which_it_came() -> None:
    held = Held()
    combiner, over, pace = held.combiner, list[tuple[object, object]](), PreparationPace()

    def stop(result: object, error: BaseException | None) -> None:
        over.append((result, type(error)))
        raise Stopping("nobody is left to be told")

    def numbered(number: int, known: Known) -> int:
        if number % 4 == 3:
            raise ValueError(number)
        return number

    # Two alternating kinds: validated separately, finished in order of arrival.
    passed_on = [
        combiner.pass_on(
            batch(number) if number % 2 else dated(number),
            PLAIN if number % 2 else DAILY,
            pace,
            partial(numbered, number),
            stop,
        )
        for number in range(12)
    ]
    assert combiner.busy
    assert over == []
    held.free()
    passed_on[-1].wait_until_over()
    expected = [(n, type(None)) if n % 4 != 3 else (None, ValueError) for n in range(12)]
    assert over == expected
    assert combiner.prepare(batch(1), PLAIN, pace, lambda known: "still there") == "still there"
