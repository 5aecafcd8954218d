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

``Client(["a:8082", "b:8082"])`` is a client of many daemons, with the same names.

A call: ``arguments`` checks what the caller passes, ``client`` turns it into a body of the protocol
(``wire``), ``connection`` sends it and repeats it under a policy (``retry``) while that helps;
``calls`` says which there are, at one daemon or, in ``cluster``, at many. Whom
it trusts, and by which token it comes in, are ``connection_options``; ``credentials`` reads the
files that they name, and reads them again when they are replaced.

A batch, from ``Writer.write`` to its answer:

    ``inputs``       what the caller hands over becomes record batches; ``meaning`` refuses what
                     Arrow would turn into something else, ``batches`` cuts, ``fitting`` casts
    ``writers``      opens a writer under an origin, which ``origins`` lends
    ``writer``       appends batches, and gives an ``ack`` for each
    ``send_loop``    says whether there is room, and waits for those who wait
    ``tracing``      the program's own spans, where it collects them
    ``stream_threads``   sends and reads, over a ``put_stream`` to the daemon that a ``route`` says
    ``delivery``     decides what becomes of a batch; ``window`` holds those not yet answered

A batch may carry a source's state; its form, and the stores of states, are in ``checkpoints``.

A query's answer is a ``query_stream``; ``filter_parser`` makes its filter from text. Changes of
another database go through a ``sync_stream``, and a whole table of one, as it is at one moment, by
``copying``. ``awaiting`` makes an awaited client of the blocking one, ``aio`` and ``trio_client``
give it a loop. ``lifetime`` guards gRPC against forks and the interpreter's end, and ``errors``
turns what pyarrow raises into ours.

This library never imports the daemon, its log or its settings. Start reading at ``client`` for
calls, at ``writer`` for writing.
"""

from .ack import Ack
from .checkpoints import Checkpoint, ListedCheckpoint, StoredCheckpoint
from .client import DEFAULT_ENDPOINT, Client
from .connection_options import ConnectionOptions
from .copying import TableCopy
from .errors import (
    ClientError,
    Forbidden,
    Forked,
    Internal,
    InvalidRequest,
    NotFound,
    OriginClash,
    Restarted,
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
from .sync_stream import SyncAnswer, SyncColumn, SyncStream
from .wire import (
    Answer,
    BatchSource,
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
    "ConnectionOptions",
    "Data",
    "Filter",
    "Forbidden",
    "Forked",
    "Internal",
    "InvalidRequest",
    "ListedCheckpoint",
    "NotFound",
    "OriginClash",
    "OriginState",
    "Persisted",
    "QueryStream",
    "Restarted",
    "RetryPolicy",
    "Scope",
    "SnapshotInfo",
    "StoredCheckpoint",
    "SyncAnswer",
    "SyncColumn",
    "SyncStream",
    "TableCopy",
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
