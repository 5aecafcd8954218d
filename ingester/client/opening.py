"""A client's writers are opened here, each under the origin and from the sequence of who writes.

an origin is named ──▶ from its first sequence, or one after what the daemon knows of it
none, exactly once ──▶ a made-up one, lent by the client's pool
none               ──▶ no origin: what a lost connection has left open stays unknown
"""

from functools import partial
from typing import NamedTuple

import pyarrow as pa

from .connection import Connection
from .origins import OriginLease, OriginPool
from .splitting import Data, batches_of
from .window import WindowLimits
from .wire import WriteResult, put_command
from .writer import Writer, WriterOptions

# A quarter of the daemon's default limit: its own measure of a batch may be larger than Arrow's.
TABLE_BATCH_BYTES = 16 * 1024**2


class WhoWrites(NamedTuple):
    """As the arguments of ``Client.writer``."""

    origin: str | None
    first_sequence: int | None
    exactly_once: bool
    keep_until_durable: bool = False
    numbers_rows: bool = False


class Writers:
    """Opens the writers of one client. Any thread."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._origins = OriginPool()

    def write_all(
        self, namespace: str, table: str, data: Data, who: WhoWrites, *, deletes: bool = False
    ) -> WriteResult:
        """What was acknowledged of ``data``, once that is all of it; as ``Client.write``."""
        schema, batches = batches_of(data, TABLE_BATCH_BYTES)
        if schema is None:
            return WriteResult()
        with self.open(namespace, table, schema, who, deletes=deletes) as writer:
            for batch in batches:
                writer.write(batch)
            return writer.close()

    def open(
        self,
        namespace: str,
        table: str,
        schema: pa.Schema,
        who: WhoWrites,
        *,
        max_unanswered: int | None = None,
        deletes: bool = False,
    ) -> Writer:
        """A writer; as ``Client.writer``."""
        lease: OriginLease | None = None
        if who.origin is not None:
            start = who.first_sequence
            if start is None:
                start = (self._position(who.origin) or 0) + 1
            lease = OriginLease(
                who.origin,
                start,
                exclusive=who.first_sequence is None,
                numbers_rows=who.numbers_rows,
            )
        elif who.exactly_once:
            lease = self._origins.lease(namespace, table)
        kind = "delete" if deletes else "write"
        command = put_command(kind, namespace, table, lease.origin if lease else None)
        window = WindowLimits(batches=max_unanswered) if max_unanswered else WindowLimits()
        connection = self._connection
        options = WriterOptions(
            window=window,
            answer_timeout_s=connection.timeout_s,
            retry=connection.retry,
            position=partial(self._position, lease.origin)
            if lease and (who.keep_until_durable or who.origin is None)
            else None,
            keep=who.keep_until_durable and lease is not None,
        )
        return Writer(lambda: connection.link(command, schema), schema, lease, options)

    def _position(self, origin: str) -> int | None:
        known = [state.memory_sequence for state in self._connection.origins(origin)]
        return max((sequence for sequence in known if sequence is not None), default=None)
