"""Makes the Flight server, with its limits in force, and lets it listen."""

from __future__ import annotations

from functools import partial

from ingester.config.settings import split_address
from ingester.daemon.assembly import Runtime
from ingester.daemon.drain import Drain
from ingester.daemon.flight_listener import FlightListener
from ingester.daemon.security import Security
from ingester.daemon.status_report import StatusReport
from ingester.errors import Stopping
from ingester.memory.allocator import find_bounded_pool, pool_bytes
from ingester.server.flight.connections import watch_connections
from ingester.server.flight.decoding import Decoding, PutLimits
from ingester.server.flight.door import Door
from ingester.server.flight.first_heads import bound_first_heads
from ingester.server.flight.reception import (
    MESSAGE_OVERHEAD_BYTES,
    ReceptionLimits,
    bounded_reception,
    largest_message,
)
from ingester.server.flight.server import IngesterServer
from ingester.server.portal import Portal
from ingester.tables.rules import shapes_of
from ingester.write.combiner import Combiner
from wal import Log

ARRIVING = 5
"""The number of largest batches that may arrive at a time; more where ``memory.limit`` is high.
Near it gRPC takes less of everybody, beyond it ends somebody: nothing else slows senders down while
the interpreter is busy. What arrives is not in ``memory.limit``, but in what stands beside it."""


async def listen(
    runtime: Runtime, report: StatusReport, security: Security, drain: Drain
) -> FlightListener:
    """Return what listens, which takes calls from now on.

    Raises:
        ListenError: the address cannot be had.
    """
    settings, portal = runtime.settings, Portal(before=partial(_catch_up, runtime.wal))
    decoding = _decoding(runtime)
    runtime.ledger.gauge("decoding", lambda: decoding.nbytes)
    flight = settings.flight
    limits = PutLimits(
        flight.max_batch_bytes, flight.max_unanswered, decoding, shapes_of(settings.limits)
    )
    security.access.meter(runtime.namespaces.request)
    services = runtime.services(report.status, report.page, security.access, drain.asked)

    combiner = Combiner()
    bound_first_heads()

    def make(door: Door) -> IngesterServer:
        watch_connections(runtime.connections)
        with bounded_reception(_reception_limits(runtime)) as limit_threads:
            server = IngesterServer(door, services, portal, limits, combiner)
        server.bound_waiting(settings.limits.calls, limit_threads)
        return server

    door = Door(*split_address(settings.flight.listen), security.certificates)
    listener = FlightListener(door, make)
    await listener.open()
    runtime.flight_url = listener.url
    return listener


def _reception_limits(runtime: Runtime) -> ReceptionLimits:
    """Return the limits of the server."""
    settings = runtime.settings
    batch_bytes = settings.flight.max_batch_bytes
    ordinary = batch_bytes + MESSAGE_OVERHEAD_BYTES
    return ReceptionLimits(
        message_bytes=largest_message(batch_bytes),
        all_bytes=max(ARRIVING * ordinary, settings.memory.limit // 2),
        calls=settings.limits.calls,
        connections=runtime.connections.limits.most,
        idle_s=settings.flight.idle_timeout,
    )


def _decoding(runtime: Runtime) -> Decoding:
    settings = runtime.settings
    most_bytes, limit = settings.flight.max_batch_bytes, settings.memory.limit
    size = pool_bytes(most_bytes, limit)
    return Decoding(find_bounded_pool(), size, most_bytes, runtime.hoards)


def _catch_up(wal: Log) -> None:
    """Apply what was acknowledged just now, so that a client finds it or hears that it cannot."""
    wal.catch_up()
    if wal.parted:
        raise Stopping("the daemon stops: it could not apply what is in its log")
