"""The file descriptors of the process: as many as the system gives, shared out.

    half of them      connections to the gRPC port
    an eighth         connections to the HTTP port: probes have room whoever writes
    the rest          the log, files of the store, spilled rows, connections to the store

Law of this file: whoever connects can take no descriptor from the log. A limit of the settings that
does not fit is lowered, and an operator is told.
"""

from __future__ import annotations

import resource
from typing import NamedTuple

import structlog

from ingester.config.settings import LimitsSettings

log = structlog.get_logger(__name__)


class ConnectionShares(NamedTuple):
    """The most connections to the gRPC port, and to the HTTP port."""

    flight: int
    http: int


def raise_descriptors() -> int:
    """Take as many descriptors as the system lets this process have; return their number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return 2**31 if soft == resource.RLIM_INFINITY else soft


def share_descriptors(limits: LimitsSettings, descriptors: int) -> ConnectionShares:
    """Lower the limits of connections to what there are descriptors for."""
    return ConnectionShares(
        min(limits.connections, max(1, descriptors // 2)),
        min(limits.http_connections, max(4, descriptors // 8)),
    )


def tell_shares(limits: LimitsSettings, descriptors: int) -> ConnectionShares:
    """Tell an operator where the limits had to be lowered; return what they are."""
    shares = share_descriptors(limits, descriptors)
    if shares != (limits.connections, limits.http_connections):
        log.warning(
            "fewer connections than the settings say: the process may have too few files open",
            descriptors=descriptors,
            connections=shares.flight,
            http_connections=shares.http,
            runbook="few-descriptors",
        )
    return shares
