"""The outcome of batches, decided without threads or connections."""

import pytest

from ingester.client import (
    ClientError,
    InvalidRequest,
    OriginClash,
    RetryPolicy,
    TimedOut,
    Unavailable,
    UnknownOutcome,
    Unreachable,
    WriteAnswer,
    WriteResult,
)
from ingester.client.ack import Ack
from ingester.client.delivery import Delivery, OriginLease, SendWindow, WindowLimits
from ingester.client.retry import RetryState
from tests.client.rows import batch

POLICY = RetryPolicy(for_s=10, first_delay_s=1, max_delay_s=4)


def delivery(origin: str | None = "o", *, exclusive: bool = True) -> Delivery:
    lease = None if origin is None else OriginLease(origin, 1, exclusive=exclusive)
    return Delivery(SendWindow(WindowLimits()), lease, RetryState(POLICY, lambda: 0.0))


def append(to: Delivery, count: int) -> None:
    for n in range(count):
        to.append(batch(n), None, Ack(lambda: 30.0))


def test_a_lost_stream_is_resent_from_its_oldest_unanswered_batch() -> None:
    one = delivery()
    append(one, 3)
    one.window.take(0.0)
    one.window.take(0.0)
    one.answered(WriteAnswer(True, memory_sequence=1), 0.5)
    assert one.lost(Unreachable("gone"), 1.0) == 1.0
    assert [one.window.take(2.0).sequence for _ in range(2)] == [2, 3]
    settled, refusal = one.answered(WriteAnswer(True, duplicate=True, memory_sequence=2), 2.5)
    assert settled is not None
    assert (settled.sequence, refusal) == (2, None)
    assert one.total == WriteResult(rows=2, batches=2, duplicates=1, memory_sequence=2)


def test_progress_resets_the_delay_and_the_policy_ends_retries() -> None:
    one = delivery()
    append(one, 2)
    delays: list[float | ClientError] = []
    for now in (0.0, 1.0, 3.0):
        one.window.take(now)
        delays.append(one.lost(Unreachable("gone"), now))
    one.window.take(7.0)
    one.answered(WriteAnswer(True), 7.0)
    gone = Unreachable("gone")
    assert [*delays, one.lost(gone, 7.0)] == [1.0, 2.0, 4.0, 1.0]
    assert one.lost(gone, 17.0) is gone


def test_a_stream_lost_while_idle_costs_nothing() -> None:
    one = delivery(None)
    assert [one.lost(Unreachable("gone"), now) for now in (0.0, 99.0)] == [0.0, 0.0]


@pytest.mark.parametrize("error", [Unreachable("gone"), TimedOut("late"), Unavailable("no")])
def test_a_lost_batch_without_an_origin_has_an_unknown_outcome(error: ClientError) -> None:
    one = delivery(None)
    append(one, 2)
    assert one.lost(error, 0.0) == 1.0  # nothing was sent yet
    one.window.take(1.0)
    outcome = one.lost(error, 1.0)
    assert isinstance(outcome, UnknownOutcome)
    assert str(outcome) == f"{error}; 1 batches had no origin and no answer"
    assert outcome.__cause__ is error


def test_a_refused_connection_has_a_known_outcome_without_an_origin_too() -> None:
    one = delivery(None)
    append(one, 1)
    one.window.take(0.0)
    assert one.lost(Unavailable("full", code="memory"), 0.0) == 1.0


def test_unread_answers_are_inferred_from_the_daemons_position() -> None:
    one = delivery()
    append(one, 3)
    for now in (0.0, 1.0, 2.0):
        one.window.take(now)
    assert [pending.sequence for pending in one.answered_up_to(2)] == [1, 2]
    assert one.total == WriteResult(rows=2, batches=2, memory_sequence=2)
    assert one.lost(Unavailable("full", code="memory"), 0.0) == 1.0
    assert one.window.take(3.0).sequence == 3


def test_unread_answers_are_inferred_from_the_count_in_a_refusal() -> None:
    one = delivery(None)
    append(one, 3)
    for now in (0.0, 1.0, 2.0):
        one.window.take(now)
    assert [pending.batch.num_rows for pending in one.answered_unread(2)] == [1, 1]
    assert one.total == WriteResult(rows=2, batches=2)
    assert one.lost(Unavailable("full", code="memory"), 0.0) == 1.0
    assert len(one.window) == 1


def test_a_refusal_after_possibly_lost_answers_has_an_unknown_outcome() -> None:
    for origin, said in (
        (None, "full; 1 batches had no origin and no answer"),
        ("o", "full; 1 batches may have been applied"),
    ):
        one = delivery(origin)
        append(one, 1)
        one.window.take(0.0)
        if origin is not None:
            assert (
                one.lost(Unavailable("full", code="memory"), 0.0, unclear=True) == 1.0
            )  # sent again, under its sequence
            one.window.take(1.0)
        outcome = one.lost(Unavailable("full", code="memory"), 99.0, unclear=True)
        assert isinstance(outcome, UnknownOutcome)
        assert str(outcome) == said


def test_an_invalid_request_is_not_repeated() -> None:
    one = delivery()
    append(one, 2)
    one.window.take(0.0)
    wrong = InvalidRequest("column 'v': no")
    assert one.lost(wrong, 0.0) is wrong
    assert [pending.sequence for pending in one.fail(wrong)] == [1, 2]
    assert (one.failure, len(one.window)) == (wrong, 0)


@pytest.mark.parametrize(
    ("exclusive", "times", "expected"),
    [(True, 1, OriginClash), (True, 2, type(None)), (False, 1, type(None))],
)
def test_a_duplicate_belongs_to_another_writer_only_if_sent_once_with_our_sequence(
    exclusive: bool, times: int, expected: type
) -> None:
    one = delivery(exclusive=exclusive)
    append(one, 1)
    for _ in range(times):
        one.window.rewind()
        one.window.take(0.0)
    settled, refusal = one.answered(WriteAnswer(True, duplicate=True), 0.0)
    assert settled is not None
    assert type(refusal) is expected
    assert one.total.batches == (expected is type(None))


def test_superseded_means_our_own_older_call_only_shortly_after_it_was_abandoned() -> None:
    one = delivery()
    append(one, 3)
    taken = Unavailable("a newer stream", code="superseded")
    one.window.take(0.0)
    assert one.lost(taken, 0.0) is taken
    one.lost(TimedOut("silent"), 1.0)
    for now in (50.0, 59.0):  # a daemon stands still for long and then serves both calls
        one.window.take(now)
        one.answered(WriteAnswer(True), 50.0)
        assert one.lost(taken, now) == 1.0
    one.window.take(60.0)
    assert one.lost(taken, 60.0) is taken


def test_a_generated_origin_has_no_other_writer() -> None:
    lease = OriginLease("o", 1, exclusive=True, on_release=lambda lease: None)
    one = Delivery(SendWindow(WindowLimits()), lease, RetryState(POLICY, lambda: 0.0))
    append(one, 1)
    one.window.take(0.0)
    assert one.lost(Unavailable("a newer stream", code="superseded"), 0.0) == 1.0


def test_silence_counts_from_the_last_message_in_either_direction() -> None:
    one = delivery()
    append(one, 2)
    assert one.owed_s(9.0) is None
    one.window.take(10.0)
    one.window.take(11.0)
    assert one.owed_s(15.0) == 5.0
    one.answered(WriteAnswer(True), 14.0)
    assert one.owed_s(15.0) == 1.0
    one.answered(WriteAnswer(True), 15.0)
    assert one.owed_s(99.0) is None
    assert one.answered(WriteAnswer(True), 99.0) == (None, None)
