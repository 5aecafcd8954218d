"""The history of the last minutes: what is kept, and how rates and latencies are computed."""

from __future__ import annotations

from bisect import bisect_left
from datetime import datetime

from hypothesis import given
from hypothesis import strategies as st

from ingester.observability.history import FIGURES, KEPT, HistoryRing, TotalGrowth, quantile

BOUNDS = (0.001, 0.01, 0.1, 1.0)


def test_a_ring_keeps_the_newest_moments_and_null_for_what_is_not_known() -> None:
    ring = HistoryRing()
    assert ring.history(0.0, 1e9).series == {name: [] for name in FIGURES}
    for number in range(KEPT + 20):
        ring.add(5.0 * number, {"rows_per_s": number + 1 / 3, "write_p50_s": None})
    told = ring.history(1000.0, 1e9 + 1000)
    assert {len(told.at), *map(len, told.series.values())} == {KEPT}
    assert (told.at[0], told.step_s) == ("2001-09-09T01:48:20Z", 5.0)
    assert told.series["rows_per_s"][-1] == 199.333
    assert told.series["write_p50_s"] == told.series["errors"] == [None] * KEPT


def test_a_clock_that_was_set_moves_all_moments_along() -> None:
    ring = HistoryRing()
    for now in (10.0, 15.0, 75.0):  # a pause of one minute
        ring.add(now, {})
    for wall in (1e9, 1e9 + 3600):
        at = [datetime.fromisoformat(each).timestamp() for each in ring.history(80.0, wall).at]
        assert at == [wall - 70, wall - 65, wall - 5]


def test_growth_is_a_rate_from_the_second_look_on() -> None:
    growth = TotalGrowth()
    assert growth.rates(10.0, {"a": 100.0}) == {}
    assert growth.rates(15.0, {"a": 150.0, "b": 5.0}) == {"a": 10.0, "b": 1.0}
    assert growth.rates(15.0, {"a": 150.0}) == {}


@given(st.lists(st.floats(0.0, 5.0), min_size=1), st.lists(st.floats(0.0, 5.0)), st.floats(0.01, 1))
def test_a_quantile_lies_in_the_bucket_of_the_value_that_it_stands_for(
    values: list[float], earlier: list[float], share: float
) -> None:
    before = counts(earlier)
    after = [old + new for old, new in zip(before, counts(values), strict=True)]
    found = quantile(share, BOUNDS, before, after)
    assert found is not None
    # The smallest value with at least that share at or below it.
    ranked = sorted(values)
    exact = next(v for n, v in enumerate(ranked, 1) if n >= share * len(ranked))
    place = min(bisect_left(BOUNDS, exact), len(BOUNDS) - 1)
    low = BOUNDS[place - 1] if place else 0.0
    assert low <= found <= BOUNDS[place]


def test_there_is_no_quantile_of_nothing() -> None:
    assert quantile(0.5, BOUNDS, [1, 2, 3, 4, 5], [1, 2, 3, 4, 5]) is None


def counts(values: list[float]) -> list[int]:
    found = [0] * (len(BOUNDS) + 1)
    for value in values:
        found[bisect_left(BOUNDS, value)] += 1
    return found
