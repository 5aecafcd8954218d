"""The client library: write Arrow batches, read your own writes.

    from ingester.client import Client

    with Client("grpc://127.0.0.1:8082") as client:
        client.write("sensors", "readings", table)           # on disk and visible when it returns
        client.query("sensors", "readings", filter=[("host", "=", "h1")])

        with client.writer("sensors", "readings", schema) as writer:   # pipelined
            for batch in batches:
                writer.write(batch)

Writes are exactly once through lost connections and restarts of the daemon. ``TrioClient`` in
:mod:`ingester.client.trio_client` has the same names for trio. Every failure is a
:class:`ClientError`; see :mod:`ingester.client.errors` for who must act on which.
"""

from .ack import Ack
from .blocking import DEFAULT_ENDPOINT, Client
from .errors import (
    ClientError,
    Forbidden,
    Internal,
    InvalidRequest,
    NotFound,
    OriginClash,
    TimedOut,
    Unauthenticated,
    Unavailable,
    Unimplemented,
    UnknownOutcome,
    Unreachable,
)
from .reading import QueryStream
from .retry import NEVER, RetryPolicy
from .wire import (
    Answer,
    BatchSource,
    Checkpoint,
    OriginState,
    Persisted,
    SnapshotInfo,
    TableDescription,
    TableSummary,
    WriteResult,
)
from .writer import Writer

__all__ = [
    "DEFAULT_ENDPOINT",
    "NEVER",
    "Ack",
    "Answer",
    "BatchSource",
    "Checkpoint",
    "Client",
    "ClientError",
    "Forbidden",
    "Internal",
    "InvalidRequest",
    "NotFound",
    "OriginClash",
    "OriginState",
    "Persisted",
    "QueryStream",
    "RetryPolicy",
    "SnapshotInfo",
    "TableDescription",
    "TableSummary",
    "TimedOut",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "UnknownOutcome",
    "Unreachable",
    "WriteResult",
    "Writer",
]
