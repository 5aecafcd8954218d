"""The Flight server that listens, and the one that takes its place with other certificates.

    renew ─▶ a rehearsal on a free port ─▶ the old one's listener closes ─▶ the new one binds
                                           its calls go on to their end     (1 to 3 ms later)

Law of this file: there is one listener at a time on one port; a port that is lost to another
process is tried again until the daemon ends. gRPC cannot change the certificates of a listener, and
a server's shutdown does not return before its last call: that waits in a thread of its own.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import structlog
import trio

from ingester.server.flight.door import Door
from ingester.server.flight.server import IngesterServer
from ingester.server.http.server import ListenError
from ingester.server.tls.certificates import Certificates, TlsError

log = structlog.get_logger(__name__)

RETRY_S = 0.001
TELL_AFTER_S = 1.0

Make = Callable[[Door], IngesterServer]


def check_address(host: str, port: int) -> None:
    """Return where the address can be listened on. gRPC does not say why it cannot.

    Raises:
        ListenError: It is taken, or none of this machine's; the message says which.
    """
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        with socket.socket(*found[0][:3]) as tried:
            # As a listener has it: connections of the last run may still be in TIME_WAIT.
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(found[0][4])
    except OSError as exc:
        raise ListenError(
            exc.errno,
            f"flight.listen: cannot listen on {shown} ({exc.strerror}); choose another address with"
            " --flight HOST:PORT (port 0 picks a free port)",
        ) from exc


class FlightListener:
    """Owns the server that takes calls. On the loop."""

    def __init__(self, door: Door, make: Make) -> None:
        self._door = door
        self._make = make
        self._server: IngesterServer | None = None

    @property
    def url(self) -> str:
        """The address that clients dial, once it listens."""
        return self._door.location

    @property
    def certificates(self) -> Certificates | None:
        """What new connections are shown; None without TLS."""
        return self._door.certificates

    async def open(self) -> None:
        """Listen.

        Raises:
            ListenError: The address cannot be had.
        """
        try:
            await self._bind(self._door)
        except Exception as exc:
            check_address(self._door.host, self._door.port)
            at = f"{self._door.shown_host}:{self._door.port}"
            raise ListenError(f"flight.listen {at}: {exc}") from exc

    async def renew(self, certificates: Certificates) -> None:
        """Show these from now on to new connections; the calls that are open go on.

        Raises:
            TlsError: gRPC does not take them; nothing has changed.
        """
        door = replace(self._door, certificates=certificates)
        await self._rehearse(door)
        assert self._server is not None
        leave = self._server.shutdown
        threading.Thread(target=leave, name="flight-leaving", daemon=True).start()
        began = time.monotonic()
        told = False
        while self._door is not door:
            try:
                await self._bind(door)
            except Exception as exc:
                if not told and time.monotonic() - began > TELL_AFTER_S:
                    told = True
                    log.error("flight port not had again", error=str(exc), runbook="certificate")
                await trio.sleep(RETRY_S if not told else 0.1)
        log.info("flight listens anew", closed_s=round(time.monotonic() - began, 4))

    async def _bind(self, door: Door) -> None:
        server = await trio.to_thread.run_sync(self._make, door)
        self._server = server
        self._door = door if door.port else replace(door, port=int(server.port))

    async def _rehearse(self, door: Door) -> None:
        """Have gRPC take the certificates where nobody comes: no listener is lost to bad ones."""

        def try_it() -> None:
            self._make(replace(door, host="127.0.0.1", port=0)).shutdown()

        try:
            await trio.to_thread.run_sync(try_it)
        except Exception as exc:
            raise TlsError(f"tls.cert, tls.key, tls.client_ca: gRPC refuses them ({exc})") from exc
