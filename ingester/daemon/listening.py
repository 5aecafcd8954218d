"""Makes the Flight server and lets it listen."""

from __future__ import annotations

from functools import partial

from ingester.config.settings import split_address
from ingester.daemon.assembly import Runtime
from ingester.daemon.drain import Drain
from ingester.daemon.flight_listener import FlightListener
from ingester.daemon.security import Security
from ingester.daemon.status_report import StatusReport
from ingester.errors import Stopping
from ingester.server.flight.door import Door
from ingester.server.flight.put_reader import PutLimits
from ingester.server.flight.server import IngesterServer
from ingester.server.portal import Portal
from ingester.tables.rules import shapes_of
from ingester.write.combiner import Combiner
from wal import Log


async def listen(
    runtime: Runtime, report: StatusReport, security: Security, drain: Drain
) -> FlightListener:
    """Return the listener, which takes calls from now on.

    Raises:
        ListenError: the address cannot be had.
    """
    settings, portal = runtime.settings, Portal(before=partial(_catch_up, runtime.wal))
    flight = settings.flight
    limits = PutLimits(flight.max_batch_bytes, flight.max_unanswered, shapes_of(settings.limits))
    security.access.meter(runtime.namespaces.request)
    services = runtime.services(report.status, report.page, security.access, drain.asked)
    combiner = Combiner()

    def make(door: Door) -> IngesterServer:
        return IngesterServer(door, services, portal, limits, combiner)

    door = Door(*split_address(settings.flight.listen), security.certificates)
    listener = FlightListener(door, make)
    await listener.open()
    runtime.flight_url = listener.url
    return listener


def _catch_up(wal: Log) -> None:
    """Apply what was acknowledged just now, so that a client finds it or hears that it cannot."""
    wal.catch_up()
    if wal.parted:
        raise Stopping("the daemon stops: it could not apply what is in its log")
