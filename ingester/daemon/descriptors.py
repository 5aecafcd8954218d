"""The file descriptors of the process.

The daemon raises its soft limit to the hard one. The HTTP port gets at most an eighth of them; the
log, the store's files and connections to the gRPC port share the rest. pyarrow's Flight server has
no limit of connections: a proxy in front of an exposed port sets one (docs/security.md).
"""

from __future__ import annotations

import resource

import structlog

from ingester.config.settings import LimitsSettings

log = structlog.get_logger(__name__)

HTTP_SHARE = 8


def raise_descriptors() -> int:
    """Raise the soft limit of descriptors to the hard one and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return 2**31 if soft == resource.RLIM_INFINITY else soft


def http_connections(limits: LimitsSettings, descriptors: int) -> int:
    """Return the limit of HTTP connections; lower than the setting where descriptors are few."""
    most = min(limits.http_connections, max(4, descriptors // HTTP_SHARE))
    if most != limits.http_connections:
        log.warning(
            "fewer connections than the settings say: the process may have too few files open",
            descriptors=descriptors,
            http_connections=most,
            runbook="few-descriptors",
        )
    return most
