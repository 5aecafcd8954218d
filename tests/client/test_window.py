"""The window compared with a model: no batch is lost, duplicated or reordered."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from ingester.client.ack import Ack
from ingester.client.delivery import Pending, SendWindow, WindowLimits
from ingester.client.wire import OriginState

BATCH = pa.record_batch({"v": pa.array([1], pa.int64())})


def pending(sequence: int) -> Pending:
    return Pending(BATCH, None, sequence, Ack(lambda: 30.0), BATCH.nbytes)


@given(st.lists(st.sampled_from(["append", "take", "answered", "rewind"]), max_size=60))
def test_batches_are_sent_in_order_whatever_is_lost(
    events: list[str],
) -> None:
    window = SendWindow(WindowLimits(batches=5))
    appended, left, on_the_way = 0, 0, 0
    for event in events:
        if event == "append" and window.has_room(BATCH.nbytes):
            window.append(pending(appended))
            appended += 1
        elif event == "take" and window.has_unsent:
            taken = window.take(float(left))
            assert taken.sequence == left + on_the_way
            on_the_way += 1
        elif event == "answered":
            gone = window.answered()
            assert (gone is None) == (on_the_way == 0)
            if gone is not None:
                assert gone.sequence == left
                left, on_the_way = left + 1, on_the_way - 1
        elif event == "rewind":
            window.rewind()
            on_the_way = 0
        assert len(window) == appended - left <= 5
        assert window.sent_count == on_the_way
    assert [one.sequence for one in window.drain()] == list(range(left, appended))
    assert window.has_room(10**12)


def test_one_batch_is_always_accepted_and_bytes_are_limited() -> None:
    window = SendWindow(WindowLimits(batches=10, bytes=2 * BATCH.nbytes))
    assert window.has_room(10**12)
    window.append(pending(0))
    assert not window.has_room(10**12)
    window.append(pending(1))
    assert not window.has_room(1)
    window.take(0.0)
    window.answered()
    assert window.has_room(BATCH.nbytes)


def test_without_marks_a_daemons_progress_is_its_gapless_prefix() -> None:
    """Daemons of earlier releases answer so; a closing writer must not resend all until flushed."""
    window = SendWindow(WindowLimits())
    for sequence in (1, 2):
        window.append(pending(sequence))
        window.take(0.0)
        window.keep(pending(sequence), None)
        window.answered()
    assert window.has_all(OriginState("o", table_sequence=2, marks=(2,)))
    assert not window.has_all(OriginState("o"))
    window.resume(OriginState("o", table_sequence=1, marks=(1, 5)))
    assert [each.sequence for each in window.drain()] == [2]
