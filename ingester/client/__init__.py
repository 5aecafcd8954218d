"""The client library: write Arrow batches, and read them back immediately.

    from ingester.client import Client

    with Client("grpc://127.0.0.1:8082") as client:
        client.write("sensors", "readings", frame)           # on disk and visible when it returns
        client.query("sensors", "readings", filter=[("host", "=", "h1")])

        with client.writer("sensors", "readings", schema) as writer:   # pipelined
            for batch in batches:
                writer.write(batch)

Writes are exactly once through lost connections and restarts of the daemon. ``AsyncClient`` in
:mod:`ingester.client.aio` and ``TrioClient`` in :mod:`ingester.client.trio_client` have the same
methods for asyncio and trio. ``Client(["a:8082", "b:8082"])`` is a client of several daemons. All
failures are a :class:`ClientError`; :mod:`ingester.client.errors` says who must act on each.

A call: ``arguments`` checks what the caller passes, ``client`` makes a body of the protocol
(``wire``), ``connection`` sends it and retries under a policy (``retry``), at one daemon or, in
``cluster``, at several. ``credentials`` has the options for TLS and tokens, and reads the files
that they name, again whenever they are replaced.

A batch, from :meth:`Writer.write` to its answer:

    ``inputs``       converts the caller's data to record batches; ``fitting`` casts them
    ``writer``       opens writers and appends batches; each gets an ``ack``
    ``sender``       callers append, send and wait here; its threads send and read
    ``streams``      the stream to the daemon that a ``route`` chooses
    ``delivery``     decides what becomes of a batch, and holds the unanswered ones
    ``undurable``    watches batches at daemons that were left (``cluster``)
    ``deferred_states``  source states that are stored after the rows
    ``tracing``      the program's own spans, if it collects them

``checkpoints`` are the states of sources that batches carry, and the stores that keep them.

A query's answer is a ``QueryStream`` of ``streams``; ``filter_parser`` makes its filter from text.
A statement and its parameters go through ``sql``; ``sql_stream`` is its answer.
Changes of another database go through a ``sync_stream``, a copy of a whole table through
``copying``. ``awaiting`` makes an awaited client from the blocking one; ``aio`` and ``trio_client``
are for their loops. ``lifetime`` guards gRPC against forks and the end of the interpreter;
``errors`` translates pyarrow's errors.

The library never imports the daemon, its log or its settings. Start reading at ``client`` for
calls, at ``writer`` for writing.
"""

from .ack import Ack
from .checkpoints import Checkpoint, ListedCheckpoint, StoredCheckpoint
from .client import DEFAULT_ENDPOINT, Client
from .copying import TableCopy
from .credentials import ConnectionOptions
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
from .retry import NEVER, RetryPolicy
from .sql_stream import SqlStream
from .streams import QueryStream
from .sync_stream import SyncAnswer, SyncColumn, SyncContent, SyncStream
from .wire import (
    AckLevel,
    BatchSource,
    Filter,
    OriginState,
    Persisted,
    Scope,
    SnapshotInfo,
    TableDescription,
    TableSummary,
    WriteAnswer,
    WriteResult,
)
from .writer import Writer

__all__ = [
    "DEFAULT_ENDPOINT",
    "NEVER",
    "Ack",
    "AckLevel",
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
    "SqlStream",
    "StoredCheckpoint",
    "SyncAnswer",
    "SyncColumn",
    "SyncContent",
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
    "WriteAnswer",
    "WriteResult",
    "Writer",
]
