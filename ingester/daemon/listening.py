"""The Flight listener: opened once the daemon is ready, and replaced when certificates change.

    renew ─▶ a rehearsal on a free port ─▶ the old listener closes ─▶ the new one binds
                                           its calls continue         (1 to 3 ms later)

There is one listener at a time on the port; if another process takes it in between, binding is
retried until the daemon ends. gRPC cannot change the certificates of a listener, and a server's
shutdown returns only after its last call, so that it runs in a thread of its own.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import structlog
import trio

from ingester.config.settings import split_address
from ingester.daemon.assembly import Runtime, catch_up
from ingester.daemon.drain import Drain
from ingester.daemon.security import Security
from ingester.daemon.status import StatusPublisher
from ingester.observability.log_levels import LogLevels
from ingester.query.stream import AnswerStream
from ingester.server.flight.put_messages import PutLimits
from ingester.server.flight.server import IngesterServer, ListenAddress
from ingester.server.flight_sql.dispatch import FlightSqlServer
from ingester.server.http.server import ListenError
from ingester.server.portal import Portal
from ingester.server.services import Services
from ingester.server.tls import Certificates, TlsError
from ingester.tables.ddl import shapes_of

log = structlog.get_logger(__name__)

RETRY_S = 0.001
TELL_AFTER_S = 1.0

Make = Callable[[ListenAddress], IngesterServer]


async def listen(
    runtime: Runtime,
    status: StatusPublisher,
    levels: LogLevels,
    security: Security,
    drain: Drain,
) -> FlightListener:
    """Return the listener, which accepts calls from now on.

    Raises:
        ListenError: the address is not available.
    """
    settings, portal = runtime.settings, Portal(before=partial(catch_up, runtime.wal))
    flight = settings.flight
    limits = PutLimits(flight.max_batch_bytes, flight.max_unanswered, shapes_of(settings.limits))
    security.access.meter(runtime.namespaces.request)
    services = _services(runtime, status, levels, security, drain)

    def make(address: ListenAddress) -> IngesterServer:
        return FlightSqlServer(address, services, portal, limits)

    address = ListenAddress(*split_address(flight.listen), security.certificates)
    listener = FlightListener(address, make)
    await listener.open()
    runtime.flight_url = listener.url
    return listener


def _services(
    runtime: Runtime,
    status: StatusPublisher,
    levels: LogLevels,
    security: Security,
    drain: Drain,
) -> Services:
    """Return the parts that protocols use."""
    tables, metrics = runtime.tables, runtime.metrics

    def answered(stream: AnswerStream) -> None:
        metrics.table(*stream.table).answered(stream.rows, stream.nbytes)

    return Services(
        writer=runtime.writer,
        store_id=runtime.store_id,
        catalog=tables.catalog,
        writes=runtime.write.writes,
        replication=runtime.replication.service,
        reports=runtime.replication.reports,
        queries=runtime.query.queries,
        live=runtime.query.live,
        sql=runtime.sql,
        known_origins=tables.known_origins,
        checkpoints=runtime.write.checkpoint_calls,
        copies=runtime.copies,
        publishing=runtime.publishing,
        metrics=metrics,
        log_levels=levels,
        access=security.access,
        drain=drain.asked,
        traces=runtime.traces,
        persist=runtime.flush.persist,
        status=status.status,
        status_page=status.page,
        answered=answered,
        freed=runtime.heap_trim.freed,
    )


def check_address(host: str, port: int) -> None:
    """Check that an address can be listened on: gRPC does not say why it cannot.

    Raises:
        ListenError: the address is in use or not one of this machine; the message says which.
    """
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        with socket.socket(*found[0][:3]) as tried:
            # Connections of the last run may still be in TIME_WAIT.
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

    def __init__(self, address: ListenAddress, make: Make) -> None:
        self._address = address
        self._make = make
        self._server: IngesterServer | None = None

    @property
    def url(self) -> str:
        """The address that clients connect to, once it listens."""
        return self._address.location

    @property
    def certificates(self) -> Certificates | None:
        """The certificates of new connections; None without TLS."""
        return self._address.certificates

    async def open(self) -> None:
        """Listen.

        Raises:
            ListenError: the address is not available.
        """
        try:
            await self._bind(self._address)
        except Exception as exc:
            check_address(self._address.host, self._address.port)
            at = f"{self._address.shown_host}:{self._address.port}"
            raise ListenError(f"flight.listen {at}: {exc}") from exc

    async def renew(self, certificates: Certificates) -> None:
        """Use these for new connections; open calls continue.

        Raises:
            TlsError: gRPC refuses them; nothing has changed.
        """
        address = replace(self._address, certificates=certificates)
        await self._rehearse(address)
        assert self._server is not None
        leave = self._server.shutdown
        threading.Thread(target=leave, name="flight-leaving", daemon=True).start()
        began = time.monotonic()
        told = False
        while self._address is not address:
            try:
                await self._bind(address)
            except Exception as exc:
                if not told and time.monotonic() - began > TELL_AFTER_S:
                    told = True
                    log.error("flight port lost", error=str(exc), runbook="certificate")
                await trio.sleep(RETRY_S if not told else 0.1)
        log.info("flight certificates renewed", closed_s=round(time.monotonic() - began, 4))

    async def _bind(self, address: ListenAddress) -> None:
        server = await trio.to_thread.run_sync(self._make, address)
        self._server = server
        self._address = address if address.port else replace(address, port=int(server.port))

    async def _rehearse(self, address: ListenAddress) -> None:
        """Try the certificates on a free port, so that bad ones do not close the real listener."""

        def try_it() -> None:
            self._make(replace(address, host="127.0.0.1", port=0)).shutdown()

        try:
            await trio.to_thread.run_sync(try_it)
        except Exception as exc:
            raise TlsError(f"tls.cert, tls.key, tls.client_ca: gRPC refuses them ({exc})") from exc
