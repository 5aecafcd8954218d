"""Where each daemon is: its address changes with each loss.

The campaign's writers ask for the address and may still be connected to a paused process. Spark
keeps one address for a write, so it uses ``steady``, which is the same for the daemon's whole
life, as a service of Kubernetes is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from tests.client.wire_cutter import WireCutter
from tests.drivers.ports import free_port


class Homes:
    """The addresses of all daemons, shared by the clients' threads."""

    def __init__(self, homes: int) -> None:
        self._changed = threading.Condition()
        self._endpoints: list[str | None] = [None] * homes
        self._nowhere = free_port()
        self._relays = [WireCutter(self._nowhere) for _ in range(homes)]

    @property
    def steady(self) -> Sequence[str]:
        """An address of each daemon that never changes."""
        return [relay.endpoint for relay in self._relays]

    @property
    def endpoints(self) -> list[str]:
        """The addresses of all daemons that serve."""
        with self._changed:
            return [endpoint for endpoint in self._endpoints if endpoint is not None]

    def move(self, home: int, endpoint: str | None) -> None:
        """Set the address of a daemon; ``None`` while it is nowhere."""
        with self._changed:
            self._endpoints[home] = endpoint
            self._changed.notify_all()
        port = self._nowhere if endpoint is None else int(endpoint.rpartition(":")[2])
        self._relays[home].cut(port)

    def wait(self, home: int, timeout_s: float = 60.0) -> str:
        """Return the daemon's address when it has one.

        Raises:
            TimeoutError: It was nowhere for too long.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._endpoints[home], timeout_s):
                raise TimeoutError(f"daemon {home} was nowhere for {timeout_s:g} s")
            endpoint = self._endpoints[home]
            assert endpoint is not None
            return endpoint

    def rest(self, home: int, endpoint: str, longest_s: float = 0.1) -> None:
        """Return when the daemon has moved from this address, or after a moment."""
        give_up_at = time.monotonic() + longest_s
        with self._changed:
            self._changed.wait_for(
                lambda: self._endpoints[home] not in (None, endpoint),
                max(0.0, give_up_at - time.monotonic()),
            )

    def close(self) -> None:
        """End the relays."""
        for relay in self._relays:
            relay.__exit__(None, None, None)
