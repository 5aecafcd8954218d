"""All namespaces together: shares, which namespaces are forgotten, and changed quotas."""

from __future__ import annotations

import pytest

from ingester.config.settings import NamespaceQuota, QuotasSettings
from ingester.errors import OverQuota, Saturated
from ingester.quotas.namespaces import MAX_KNOWN, WANTED_S, Namespaces


class Clock:
    """A clock that stands still until the test moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_names_that_somebody_makes_up_are_forgotten_and_those_that_have_something_stay() -> None:
    namespaces = Namespaces()
    kept = namespaces.of("kept")
    kept.tables = 1
    for number in range(2 * MAX_KNOWN):
        namespaces.of(f"made_up_{number}")
    for number in range(100):
        namespaces.of(f"{number}" + "x" * 1_000)
    assert len(namespaces.known()) <= MAX_KNOWN
    assert max(len(use.name) for use in namespaces.known()) < 256
    assert namespaces.of("kept") is kept


def test_the_queue_is_refused_to_who_has_more_than_its_share_of_it() -> None:
    clock = Clock()
    namespaces = Namespaces(clock=clock)
    greedy, modest, newcomer = map(namespaces.of, ("greedy", "modest", "newcomer"))
    greedy.held_bytes = greedy.queued_bytes = 1_000
    modest.held_bytes = modest.queued_bytes = 100
    assert namespaces.over_queue(greedy, 1_100, 1_100) is None, "it is not full"
    refusal = namespaces.over_queue(greedy, 1_100, 900)
    assert isinstance(refusal, Saturated)
    assert refusal.details == {"namespace": "greedy", "quota": "share_of_queue"}
    for use in (modest, newcomer, None):
        assert namespaces.over_queue(use, 1_100, 900) is None
    modest.queued_bytes = 500
    assert namespaces.over_queue(None, 1_500, 900) is not None, "each has more than its share"


def test_whoever_was_refused_counts_among_those_who_share_for_a_while() -> None:
    clock = Clock()
    namespaces = Namespaces(clock=clock)
    first, second = namespaces.of("first"), namespaces.of("second")
    first.held_bytes = second.held_bytes = 10
    assert namespaces.share_of(300) == 150
    namespaces.no_memory(namespaces.of("third"), "no room", unfair=False)
    assert namespaces.share_of(300) == 100
    clock.now = WANTED_S
    assert namespaces.share_of(300) == 150


def test_other_quotas_hold_from_now_on_and_what_is_there_stays() -> None:
    clock, told = Clock(), list[tuple[str, str]]()
    namespaces = Namespaces(on_refused=lambda *refused: told.append(refused), clock=clock)
    namespaces.check_streams(namespaces.of("a"), 1_000)
    few = NamespaceQuota(streams=5, requests_per_s=2)
    namespaces.set_quotas(QuotasSettings(streams=7, namespaces={"a": few}))
    with pytest.raises(OverQuota, match=r'quotas."a".streams is 5'):
        namespaces.check_streams(namespaces.of("a"), 1_000)
    with pytest.raises(OverQuota, match=r"quotas.streams is 7"):
        namespaces.check_streams(namespaces.of("b"), 7)
    namespaces.check_streams(namespaces.of("b"), 6)
    for _ in range(2):
        namespaces.request("a")
    with pytest.raises(OverQuota, match="requests_per_s is 2"):
        namespaces.request("a")
    clock.now = 1.0
    namespaces.request("a")
    namespaces.set_quotas(QuotasSettings())
    for _ in range(100):
        namespaces.request("a")
    assert told == [("a", "streams"), ("b", "streams"), ("a", "requests_per_s")]
