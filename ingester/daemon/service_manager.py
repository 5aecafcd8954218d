"""Notifies systemd: ready, alive, stopping.

    starting ──▶ READY=1 ──▶ WATCHDOG=1, STATUS=… ──▶ STOPPING=1
                    ▲          └─ SIGHUP: RELOADING=1 ─┐
                    └──────── everything is reloaded ──┘
    while it starts or stops: EXTEND_TIMEOUT_USEC, for a long replay or a long flush

Notifications are sent from the event loop, so a blocked loop is not reported as alive. Without a
service manager nothing is sent. The protocol is that of ``sd_notify(3)``: a datagram of
``NAME=value`` lines.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog
import trio

from ingester.config.sources import NotifyValues

log = structlog.get_logger(__name__)

TELL_S = 5.0
"""The longest time between two notifications."""
PATIENCE_S = 30.0
"""The time that a start or a stop requests with each notification."""


@dataclass(frozen=True, slots=True)
class Phase:
    """The phase of the daemon, and a line for ``systemctl status``."""

    name: str
    said: str


class ServiceManager:
    """Notifies the service manager. On the loop."""

    def __init__(self, values: NotifyValues) -> None:
        self._address = values.address
        self._watchdog_s = values.watchdog_s
        self._failed = False

    @property
    def interval_s(self) -> float:
        """The seconds between two notifications: at most a third of the watchdog's time."""
        if self._watchdog_s is None:
            return TELL_S
        return min(TELL_S, self._watchdog_s / 3)

    async def run(self, phase: Callable[[], Phase]) -> None:
        """Notify of the phase until cancelled; without a service manager return at once."""
        while self._address is not None:
            now = phase()
            fields = {"STATUS": now.said, "WATCHDOG": "1"}
            if now.name in ("starting", "stopping"):
                fields["EXTEND_TIMEOUT_USEC"] = str(int(PATIENCE_S * 1e6))
            self.tell(**fields)
            await trio.sleep(self.interval_s)

    def ready(self, said: str) -> None:
        """Report that writes are accepted."""
        self.tell(READY="1", STATUS=said)

    def stopping(self, said: str) -> None:
        """Report that the daemon is stopping."""
        self.tell(STOPPING="1", STATUS=said)

    async def reload(self, look: Callable[[], Awaitable[None]]) -> None:
        """Report a reload while ``look`` runs."""
        self.tell(RELOADING="1", MONOTONIC_USEC=str(time.monotonic_ns() // 1000))
        await look()
        self.tell(READY="1")

    def tell(self, **fields: str) -> None:
        """Send these fields, if there is a service manager. Does not wait and does not fail."""
        if self._address is None:
            return
        # A line break would begin another field.
        lines = [f"{name}={' '.join(value.split())}" for name, value in fields.items()]
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(lines).encode(), self._address)
        except OSError as exc:
            if not self._failed:
                self._failed = True
                log.warning("service manager not told", error=str(exc), runbook="cannot-serve")
