"""Fair shares: a tenant above its equal share is refused first, one below it continues."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ingester.quotas.fair_shares import bound, equal_share, reserve

limits = st.integers(1, 10_000).map(lambda hundreds: hundreds * 200)
asks = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40)), max_size=300)


def taken(limit: int, asked: list[tuple[int, int]]) -> tuple[dict[int, int], list[int]]:
    """Let tenants ask for parts of 1/200 of the limit; returns the holdings and refusals."""
    held, refused = dict[int, int](), list[int]()
    for who, parts in asked:
        amount, own, sharers = limit * parts // 200, held.get(who, 0), len({*held, who})
        before = sum(held.values())
        if before + amount > bound(limit, own + amount if own else 0, sharers):
            refused.append(who)
            continue
        held[who] = own + amount
        # A tenant that already held something and now exceeds its share stays out of the reserve.
        fair = not own or (held[who] * sharers <= limit and held[who] * 2 <= limit)
        assert fair or before + amount <= limit - reserve(limit)
    return held, refused


@given(limits, asks)
def test_nobody_gets_more_than_the_limit_or_into_the_reserve_with_more_than_a_share(
    limit: int, asked: list[tuple[int, int]]
) -> None:
    held, refused = taken(limit, asked)
    assert sum(held.values()) <= limit
    # No tenant is refused while more than the reserve and the largest piece is free.
    assert not refused or sum(held.values()) > limit - reserve(limit) - limit * 40 // 200


@given(limits, st.lists(st.integers(5, 40), min_size=40, max_size=80))
def test_one_that_takes_all_it_can_leaves_another_the_reserve(limit: int, parts: list[int]) -> None:
    held, refused = taken(limit, [(0, each) for each in parts])
    assert refused, "it asked for more than there is"
    assert held[0] <= limit - reserve(limit)
    # A newcomer immediately gets anything up to the reserve.
    assert held[0] + reserve(limit) <= bound(limit, 0, 2)


@given(limits, st.integers(2, 50), st.integers(1, 1_000))
def test_below_its_share_only_the_limit_itself_stands_in_the_way(
    limit: int, sharers: int, own: int
) -> None:
    share = equal_share(limit, sharers)
    assert bound(limit, min(own, share), sharers) == limit
    assert bound(limit, share + own, sharers) == limit - reserve(limit)
    assert share * sharers <= limit
