"""A token bucket that may go into debt: the mean rate holds, any piece passes, waits are exact."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ingester.quotas.token_bucket import BURST_S, TokenBucket

pieces = st.lists(st.tuples(st.floats(0, 5), st.integers(1, 10_000)), min_size=1, max_size=60)


@given(st.integers(1, 1_000), pieces)
def test_no_more_flows_than_the_rate_the_burst_and_one_piece(
    rate: int, asked: list[tuple[float, int]]
) -> None:
    bucket, now, passed = TokenBucket(rate, 0.0), 0.0, list[int]()
    for pause_s, nbytes in asked:
        now += pause_s
        if not bucket.wait_s(now):
            bucket.take(nbytes, now)
            passed.append(nbytes)
    assert sum(passed) - max(passed, default=0) <= rate * (now + BURST_S) + 1


@given(st.integers(1, 1_000), st.integers(1, 1_000_000))
def test_whoever_waits_as_long_as_it_is_told_passes_and_not_before(rate: int, piece: int) -> None:
    bucket = TokenBucket(rate, 0.0)
    assert bucket.wait_s(0.0) == 0, "a piece larger than the burst passes"
    bucket.take(piece, 0.0)
    wait_s = bucket.wait_s(0.0)
    if wait_s:
        assert bucket.wait_s(wait_s * 0.99 - 1 / rate) > 0
    assert bucket.wait_s(wait_s + 1e-6) == 0


def test_a_clock_that_goes_back_gives_nothing_and_takes_nothing() -> None:
    bucket = TokenBucket(10, 100.0)
    bucket.take(30, 100.0)
    assert bucket.wait_s(50.0) == bucket.wait_s(100.0) > 0


def test_a_higher_rate_shortens_what_is_owed_and_none_forgets_it() -> None:
    bucket = TokenBucket(10, 0.0)
    bucket.take(1_010, 0.0)
    assert 100 < bucket.wait_s(0.0) < 101
    bucket.set_rate(1_000, 0.0)
    assert 1 <= bucket.wait_s(0.0) < 1.1
    bucket.set_rate(0, 0.0)
    assert bucket.wait_s(0.0) == 0
    bucket.take(1 << 40, 0.0)
    bucket.set_rate(10, 5.0)
    assert bucket.wait_s(5.0) == 0
