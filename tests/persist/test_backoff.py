"""The waits between attempts."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist.backoff import Backoff


class Highest(Random):
    """Always draws the upper end."""

    def uniform(self, a: float, b: float) -> float:
        return b


def test_the_ceiling_doubles_up_to_the_cap() -> None:
    backoff = Backoff(0.5, 3.0, Highest())
    assert [backoff.next_s() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


@given(st.integers())
def test_a_wait_never_exceeds_its_ceiling(seed: int) -> None:
    ceilings, drawn = Backoff(1.0, 30.0, Highest()), Backoff(1.0, 30.0, Random(seed))
    for _ in range(100):
        assert 0 <= drawn.next_s() <= ceilings.next_s()


def test_callers_that_fail_together_do_not_retry_together() -> None:
    waits = {Backoff(1.0, 30.0, Random(seed)).next_s() for seed in range(100)}
    assert len(waits) == 100
    assert min(waits) < 0.1
    assert max(waits) > 0.9


@pytest.mark.parametrize(("first_s", "cap_s"), [(0, 1), (-1, 1), (2, 1)])
def test_a_backoff_that_could_not_grow_is_refused(first_s: float, cap_s: float) -> None:
    with pytest.raises(ValueError, match="backoff"):
        Backoff(first_s, cap_s, Random())
