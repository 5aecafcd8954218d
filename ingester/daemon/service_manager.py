"""What systemd is told of the daemon, over the socket that it names: ready, alive, stopping.

    starting ──▶ READY=1 ──▶ WATCHDOG=1, STATUS=… ──▶ STOPPING=1
                    ▲          └─ SIGHUP: RELOADING=1 ─┐
                    └──────── all is read again ───────┘
    while it starts or stops: EXTEND_TIMEOUT_USEC, for a long replay or a long persist

Law of this file: what is told comes from the loop, so that a loop that stands still is not told to
be alive. Nothing is told where nobody listens, and nothing of the daemon depends on it. The
protocol is that of ``sd_notify(3)``: one datagram, ``NAME=value`` by lines.
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
"""The longest time between two tellings."""
PATIENCE_S = 30.0
"""The time that a start or a stop asks for, from each telling on."""


@dataclass(frozen=True, slots=True)
class Phase:
    """The phase of the daemon's life, and a line for ``systemctl status``."""

    name: str
    said: str


class ServiceManager:
    """Tells systemd, or whoever has started the daemon, where it stands. On the loop."""

    def __init__(self, values: NotifyValues) -> None:
        self._address = values.address
        self._watchdog_s = values.watchdog_s
        self._failed = False

    @property
    def interval_s(self) -> float:
        """The seconds between two tellings: a third of what the watchdog allows, or less."""
        if self._watchdog_s is None:
            return TELL_S
        return min(TELL_S, self._watchdog_s / 3)

    async def run(self, phase: Callable[[], Phase]) -> None:
        """Tell of the phase now and then, until cancelled; nothing where nobody listens."""
        while self._address is not None:
            now = phase()
            fields = {"STATUS": now.said, "WATCHDOG": "1"}
            if now.name in ("starting", "stopping"):
                fields["EXTEND_TIMEOUT_USEC"] = str(int(PATIENCE_S * 1e6))
            self.tell(**fields)
            await trio.sleep(self.interval_s)

    def ready(self, said: str) -> None:
        """Tell that the daemon takes writes."""
        self.tell(READY="1", STATUS=said)

    def stopping(self, said: str) -> None:
        """Tell that the daemon is on its way out, whoever has asked for it."""
        self.tell(STOPPING="1", STATUS=said)

    async def reload(self, look: Callable[[], Awaitable[None]]) -> None:
        """Tell that settings are read anew while ``look`` reads them."""
        self.tell(RELOADING="1", MONOTONIC_USEC=str(time.monotonic_ns() // 1000))
        await look()
        self.tell(READY="1")

    def tell(self, **fields: str) -> None:
        """Send these fields, if anybody listens. Never waits, never fails."""
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
