"""What a client knows of each daemon's health: a circuit breaker per endpoint. Pure.

    usable ──failed──▶ open until t ──t passes──▶ asked again ──answered──▶ usable
                          ▲                            │
                          └───────────failed───────────┘  (twice as long, up to MOST_S)

The time is shortened by a random part, so that clients that lost a daemon together do not come back
together. An open circuit is a preference and no wall: where every circuit is open, the one that
closes first is tried.
"""

from collections.abc import Sequence

import msgspec

from ..errors import ClientError

FIRST_S = 0.5
MOST_S = 30.0
GOING_CODES = frozenset({"stopping", "fenced", "unavailable", "disk_full"})
"""The refusals of a daemon that goes away, or that takes nothing for long: others take it."""


class Circuit(msgspec.Struct):
    """The failures in a row of one daemon, the time of the next try, and the last error."""

    failures: int
    until: float
    error: ClientError


class Health:
    """The circuits of one client's daemons. Not thread-safe: its owner locks."""

    def __init__(self) -> None:
        self._open: dict[str, Circuit] = {}

    def failed(self, endpoint: str, error: ClientError, now: float, fraction: float) -> None:
        """Open the circuit, for longer each time. ``fraction`` is random in 0..1."""
        circuit = self._open.get(endpoint)
        if circuit is not None and now < circuit.until:
            circuit.error = error  # of the same outage: who was under way tells it, too
            return
        failures = 1 if circuit is None else circuit.failures + 1
        grown = min(MOST_S, FIRST_S * 2.0 ** min(failures - 1, 30))
        delay_s = max(grown * (1 - fraction / 2), min(error.retry_after_s or 0.0, MOST_S))
        self._open[endpoint] = Circuit(failures, now + delay_s, error)

    def answered(self, endpoint: str) -> None:
        """Close the circuit."""
        self._open.pop(endpoint, None)

    def error(self, endpoint: str) -> ClientError | None:
        """The last error of a daemon whose circuit is open; None for one that is usable."""
        circuit = self._open.get(endpoint)
        return None if circuit is None else circuit.error

    def usable(self, endpoint: str) -> bool:
        """Whether nothing speaks against the daemon."""
        return endpoint not in self._open

    def due(self, now: float) -> list[str]:
        """The daemons whose circuits are open and may be tried again."""
        return [each for each, circuit in self._open.items() if circuit.until <= now]

    def next_due(self) -> float | None:
        """The time at which the first of them may be tried again; None where none is open."""
        return min((circuit.until for circuit in self._open.values()), default=None)

    def order(self, endpoints: Sequence[str]) -> list[str]:
        """The endpoints: the usable ones as they stand, then the others, the soonest first."""
        down = [each for each in endpoints if each in self._open]
        down.sort(key=lambda each: self._open[each].until)
        return [each for each in endpoints if each not in self._open] + down

    def keep(self, endpoints: Sequence[str]) -> None:
        """Forget all daemons but these."""
        for gone in self._open.keys() - {*endpoints}:
            del self._open[gone]
