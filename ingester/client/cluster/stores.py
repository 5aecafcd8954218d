"""The stores that the daemons of a client write to: those of one client have the same one.

A daemon says the id of its store (action ``store``). Rows of another store belong to another table,
whatever its name, so daemons of different stores are refused: one's files and the other's tail
would make an answer that was never true. A daemon of before says nothing and is taken.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from ..errors import InvalidRequest

ASK_AGAIN_S = 10.0
"""The time until a daemon that has not answered the question is asked again."""


class Stores:
    """What is known of each endpoint's store. Not thread-safe: its owner locks."""

    def __init__(self) -> None:
        self._ids: dict[str, str | None] = {}
        """By endpoint; None where a daemon of before says nothing."""
        self._not_before: dict[str, float] = {}
        """When to ask an endpoint; infinity where what is known holds."""

    def told(self, endpoint: str, store: str | None) -> None:
        """Note what a daemon says."""
        self._ids[endpoint] = store
        self._not_before[endpoint] = float("inf")

    def knows(self, endpoint: str) -> bool:
        """Whether an endpoint has said its store since it was away last."""
        return self._not_before.get(endpoint) == float("inf")

    def silent(self, endpoint: str, now: float) -> None:
        """Note that a daemon has not answered."""
        self._not_before[endpoint] = now + ASK_AGAIN_S

    def was_away(self, endpoint: str) -> None:
        """Have a daemon asked anew: it may be another one. What it said holds until then."""
        self._not_before.pop(endpoint, None)

    def due(self, endpoints: Sequence[str], now: float) -> list[str]:
        """The endpoints to ask."""
        return [each for each in endpoints if self._not_before.get(each, now) <= now]

    def differ(self, endpoints: Sequence[str]) -> InvalidRequest | None:
        """The error of endpoints of which two are known to have different stores."""
        known = {each: store for each in endpoints if (store := self._ids.get(each)) is not None}
        return different(known)


def different(stores: Mapping[str, str]) -> InvalidRequest | None:
    """The error of daemons of which two have different stores; ``stores`` has ids by endpoint."""
    for (one, ones), (other, others) in pairwise(stores.items()):
        if ones != others:
            return InvalidRequest(
                f"{one} writes to store {ones}, and {other} to store {others}: daemons that are"
                " used as one have the same store. Name those of one store, or see to `store` in"
                " their settings, and make the client anew"
            )
    return None
