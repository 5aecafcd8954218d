"""Rates, computed with a fake clock."""

from hypothesis import given
from hypothesis import strategies as st

from ingester.observability.history import LONG_SPAN_S, SHORT_SPAN_S, RateCounter
from ingester.observability.status import Rates, RateSpans


class Clock:
    """A clock that the test sets, in seconds."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def test_nothing_counted_is_nothing_per_second() -> None:
    clock = Clock()
    counter = RateCounter(clock)
    assert counter.spans() == RateSpans()
    clock.now += 300
    assert counter.spans() == RateSpans()


def test_before_a_span_is_full_the_rate_is_the_mean_since_the_start() -> None:
    clock = Clock()
    counter = RateCounter(clock)
    counter.add(rows=40, nbytes=400, operations=4, queries=2)
    clock.now += 4
    expected = Rates(rows_per_s=10, bytes_per_s=100, operations_per_s=1, queries_per_s=0.5)
    assert counter.spans() == RateSpans(last_10s=expected, last_60s=expected)


def test_the_second_that_still_runs_is_not_counted_yet() -> None:
    clock = Clock()
    counter = RateCounter(clock)
    clock.now += 2
    counter.add(rows=100)
    clock.now += 0.9
    assert counter.spans().last_10s.rows_per_s == 0
    clock.now += 0.1
    assert counter.spans().last_10s.rows_per_s == 100 / 3


def test_what_is_older_than_the_span_no_longer_counts() -> None:
    clock = Clock()
    counter = RateCounter(clock)
    counter.add(rows=600)
    clock.now += SHORT_SPAN_S
    assert counter.spans().last_10s.rows_per_s == 60
    clock.now += 1
    assert counter.spans().last_10s.rows_per_s == 0
    clock.now += LONG_SPAN_S - SHORT_SPAN_S - 1
    assert counter.spans().last_60s.rows_per_s == 10
    clock.now += 1
    assert counter.spans().last_60s.rows_per_s == 0


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 1000)), max_size=40))
def test_the_buckets_equal_a_list_of_everything(steps: list[tuple[int, int]]) -> None:
    clock = Clock()
    counter = RateCounter(clock)
    seen: list[tuple[float, int]] = []
    for pause_s, rows in steps:
        clock.now += pause_s
        counter.add(rows=rows)
        seen.append((clock.now, rows))
    for span_s, rates in (
        (SHORT_SPAN_S, counter.spans().last_10s),
        (LONG_SPAN_S, counter.spans().last_60s),
    ):
        first = max(clock.now - span_s, 1000)
        total = sum(rows for at, rows in seen if first <= at < clock.now)
        passed_s = clock.now - first
        assert rates.rows_per_s == (total / passed_s if passed_s else 0)
