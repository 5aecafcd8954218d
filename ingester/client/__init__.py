"""The client library: write Arrow batches, read your own writes.

    from ingester.client import Client

    with Client("grpc://127.0.0.1:8082") as client:
        client.write("sensors", "readings", frame)           # on disk and visible when it returns
        client.query("sensors", "readings", filter=[("host", "=", "h1")])

        with client.writer("sensors", "readings", schema) as writer:   # pipelined
            for batch in batches:
                writer.write(batch)

Writes are exactly once through lost connections and restarts of the daemon. ``AsyncClient`` in
:mod:`ingester.client.aio` and ``TrioClient`` in :mod:`ingester.client.trio_client` have the same
names for asyncio and trio. What ``write`` takes says :mod:`ingester.client.inputs`: Arrow in every
form, pandas, Polars, dicts. Every failure is a :class:`ClientError`; see
:mod:`ingester.client.errors` for who must act on which.

    blocking                     one method per thing the daemon does
    awaiting, asyncio_loop, aio, trio_client     the same, awaited
    arguments, endpoint          what callers pass, checked
    inputs, splitting, fitting, meaning          what they write, as batches of the table's types
    opening, writer              a writer, and under which origin it writes
    ack, driver, stream_threads  who waits for an answer, and who sends and reads
    delivery, window, origins, retry             what becomes of each batch
    reading, filter_text         what a query asks and answers
    sync                         a replication stream
    connection, link, lifetime   every call of pyarrow, and how long gRPC lives
    wire, errors                 bodies of the protocol, and refusals
"""

from .ack import Ack
from .client import DEFAULT_ENDPOINT, Client
from .errors import (
    ClientError,
    Forbidden,
    Forked,
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
from .inputs import Data
from .query_stream import QueryStream
from .retry import NEVER, RetryPolicy
from .wire import (
    Answer,
    BatchSource,
    Checkpoint,
    Filter,
    OriginState,
    Persisted,
    Scope,
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
    "Data",
    "Filter",
    "Forbidden",
    "Forked",
    "Internal",
    "InvalidRequest",
    "NotFound",
    "OriginClash",
    "OriginState",
    "Persisted",
    "QueryStream",
    "RetryPolicy",
    "Scope",
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
