"""A pipelined writer, and how a client opens one. Each batch is applied exactly once.

    Writer            what callers have
      BatchSender       appends to the window, sends, and reads answers
        Route             the daemon of each stream
        PutStream         one stream to the daemon
        Delivery          decides what becomes of a batch: sent again, counted, failed
          SendWindow        unanswered batches, in order

A writer's batches carry an origin and sequences:

    an origin is named    from its first sequence, or one after the daemon's last
    none, exactly once    a made-up origin, lent by the client's pool
    none                  no origin: unanswered batches of a lost connection stay unknown
"""

import itertools
import random
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple, NoReturn, Self

import pyarrow as pa

from . import arguments, lifetime
from .ack import Ack, all_of
from .checkpoints import Checkpoint, checked
from .cluster import ClusterConnection
from .delivery import Delivery, OriginLease, OriginPool, SendWindow, WindowLimits
from .errors import ClientError, InvalidRequest, UnknownOutcome
from .fitting import Fitting, aligned
from .inputs import TABLE_BATCH_BYTES, Data, at_least_one, batches_of, only_one
from .retry import RetryState
from .route import OneDaemon, Route, RouteRequest
from .sender import BatchSender
from .tracing import TracedTable
from .wire import AckLevel, WriteResult, put_command

Calls = OneDaemon | ClusterConnection
"""The calls of a client. They are idempotent and retried."""

_UNKNOWN = pa.schema([])


class Writer:
    """Writes batches of one schema to one table. Any number of threads may call it.

    Made by :meth:`Client.writer`. As a context manager it closes at the end; if the body raises, it
    stops without waiting and unanswered batches have an unknown outcome.
    """

    def __init__(
        self,
        route: Route,
        schema: pa.Schema,
        lease: OriginLease | None,
        sender: BatchSender,
        traced: TracedTable,
    ) -> None:
        self._schema = schema
        self._lease = lease
        self._route = route
        self._traced = traced
        self._sender = sender
        # A dropped writer finishes its stream and leaves no thread behind.
        weakref.finalize(self, _dropped, sender).atexit = False

    @property
    def origin(self) -> str | None:
        """The origin of the batches."""
        return None if self._lease is None else self._lease.origin

    @property
    def acknowledged(self) -> WriteResult:
        """The acknowledged rows and batches so far."""
        return self._sender.delivery.total

    def write(self, data: Data, checkpoint: Checkpoint | tuple[str, bytes] | None = None) -> Ack:
        """Append a batch; waits while the window is full, but not for the answer.

        Args:
            data: A RecordBatch is one operation: visible whole or not at all. It has at most the
                daemon's ``flight.max_batch_bytes`` and is held until it is answered. Other forms
                that ``Client.write`` takes are converted to the writer's schema: one operation if
                they fit into 16 MiB, else several with a common promise.
            checkpoint: A source partition and its state, stored atomically with the (last) batch.
                :class:`Checkpoint` also has bytes that partitions share.

        Raises:
            InvalidRequest: The data has no rows or another schema, or makes several batches where
                ``first_sequence`` numbers them. Earlier batches of a stream may be sent already.
            ClientError: The error that ended the writer.
        """
        stored = checked(checkpoint)
        if self._fits(data):
            return self._append(data, stored)
        batches = self._batches(data)
        acks = []
        batch = next(batches)
        for following in batches:
            acks.append(self._append(batch, None))
            batch = following
        acks.append(self._append(batch, stored))
        return acks[0] if len(acks) == 1 else all_of(acks, self._sender.check_silence)

    def try_write(
        self, data: Data, checkpoint: Checkpoint | tuple[str, bytes] | None = None
    ) -> Ack | None:
        """Append one batch as :meth:`write` does, or return None if that would have to wait."""
        if not self._fits(data):
            data, *more = self._batches(data)
            if more:
                raise InvalidRequest("try_write takes one batch of up to 16 MiB; use write")
        stored, span = checked(checkpoint), self._traced.begin(data)
        ack = self._sender.append(data, stored, span.traceparent)
        return None if ack is None else span.until(ack)

    def _append(self, batch: pa.RecordBatch, checkpoint: Checkpoint | None) -> Ack:
        span = self._traced.begin(batch)
        try:
            while (ack := self._sender.append(batch, checkpoint, span.traceparent)) is None:
                self._sender.wait_for_room(batch, checkpoint)
        except BaseException as exc:
            span.end(exc)
            raise
        return span.until(ack)

    def _fits(self, data: Data) -> bool:
        return isinstance(data, pa.RecordBatch) and data.schema.equals(self._schema)

    def _batches(self, data: Data) -> Iterator[pa.RecordBatch]:
        """The batches of ``data`` in the writer's schema; at least one."""
        if isinstance(data, pa.RecordBatch):
            return iter([aligned(data, self._schema)])
        given = batches_of(data, TABLE_BATCH_BYTES)
        batches: Iterator[pa.RecordBatch]
        batches = (aligned(batch, self._schema) for batch in given.batches)
        if given.held:
            batches = iter([*batches])  # all are converted before the first is appended
        numbered = self._lease is not None and not self._lease.exclusive
        return at_least_one(only_one(batches) if numbered else batches, self._schema)

    def flush(self) -> WriteResult:
        """Wait until everything written is answered; the result so far.

        Raises:
            ClientError: A batch was refused, or its outcome is unknown.
        """
        return self._sender.wait_until_idle()

    def close(self) -> WriteResult:
        """Flush, end the stream and return the result. May be repeated.

        Raises:
            ClientError: As :meth:`flush`.
        """
        result = self.flush()
        while self._sender.make_certain():
            result = self.flush()
        if self._sender.finish() and self._lease is not None:
            if not self._lease.made_up:
                _warn_of_repeats(self._lease, result)
            if not self._route.suspended:
                self._lease.release()
        return result

    def abort(self) -> None:
        """Stop without waiting. Unanswered batches have an unknown outcome."""
        self._sender.abort(UnknownOutcome("the writer was stopped before the answer came"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, exc: BaseException | None, tb: object) -> None:
        if exc is None:
            self.close()
        else:
            self.abort()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a writer belongs to its process: open one in each")


def _warn_of_repeats(lease: OriginLease, result: WriteResult) -> None:
    """Warn if a writer has added nothing: its rows may be new, under numbers used before."""
    if not result.batches or result.duplicates < result.batches:
        return
    lifetime.CLIENT_LOG.warning(
        "origin %r: all %s batches (%s rows, sequences %s to %s) were known, so nothing was added;"
        " the newest known sequence is %s. If these are new rows, use another origin, or higher"
        " sequences",
        lease.origin,
        f"{result.batches:,}",
        f"{result.rows:,}",
        lease.first_sequence,
        lease.next_sequence - 1,
        result.memory_sequence,
    )


def _dropped(sender: BatchSender) -> None:
    if lifetime.alive():
        sender.leave()


class WhoWrites(NamedTuple):
    """A writer's origin, sequences and level: arguments of :meth:`Client.writer`."""

    origin: str | None
    first_sequence: int | None
    exactly_once: bool
    keep_until_durable: bool = False
    numbers_rows: bool = False
    ack: AckLevel | None = None

    def check(self) -> None:
        """Raise :class:`InvalidRequest` for arguments that are invalid or do not go together."""
        if self.origin is not None:
            arguments.text("origin", self.origin)
        elif self.first_sequence is not None:
            raise InvalidRequest(
                "first_sequence needs an origin, such as origin='station-7': a sequence means"
                " nothing without it"
            )
        elif self.keep_until_durable and not self.exactly_once:
            raise InvalidRequest("keep_until_durable needs an origin, or exactly_once")
        arguments.integer("first_sequence", self.first_sequence, 0)
        arguments.ack_level(self.ack)


class Writers:
    """Opens the writers of one client. Any thread."""

    def __init__(self, connection: Calls) -> None:
        self._connection = connection
        self._origins = OriginPool()
        self._known: dict[tuple[str, str], pa.Schema] = {}
        """The schemas of tables written to. Types only change when a copy replaces the table."""

    def write_all(
        self, namespace: str, table: str, data: Data, who: WhoWrites, *, deletes: bool = False
    ) -> WriteResult:
        """Write ``data`` and wait until all of it is acknowledged. See :meth:`Client.write`."""
        who.check()
        schema, given, drawn, held = batches_of(data, TABLE_BATCH_BYTES)
        if who.first_sequence is not None and not drawn:
            given = only_one(given)
        first = next(given, None)
        if first is None:
            return WriteResult()
        held = held or isinstance(data, pa.RecordBatch)
        whole, table_known = [first, *given] if held else [first], (namespace, table)
        while True:
            was_known = table_known in self._known
            # If all rows are in memory, values that do not fit are refused before any is sent.
            fitted, ready = self._fitted(table_known, schema, whole)
            writer: Writer | None = None
            try:
                with self.open(namespace, table, fitted.schema, who, deletes=deletes) as writer:
                    _write_each(writer, itertools.chain(ready, map(fitted, given)))
                    return writer.close()
            except InvalidRequest as exc:
                self._known.pop(table_known, None)
                if writer is None or not writer.acknowledged.batches:
                    if held and was_known and fitted.schema is not schema:
                        continue  # it was converted to outdated types of the table
                    raise
                raise _with_written(exc, writer.acknowledged) from exc

    def _fitted(
        self, table: tuple[str, str], sent: pa.Schema, batches: Sequence[pa.RecordBatch]
    ) -> tuple[Fitting, list[pa.RecordBatch]]:
        """The batches in the table's types, and the conversion for further ones."""
        was_known = table in self._known
        fitted = Fitting(sent, self._known_schema(*table))
        try:
            return fitted, [fitted(batch) for batch in batches]
        except InvalidRequest:
            if not was_known:
                raise
            del self._known[table]  # the types may have changed
            return self._fitted(table, sent, batches)

    def _known_schema(self, namespace: str, table: str) -> pa.Schema:
        """The table's schema; empty if it is unknown, so that the daemon decides."""
        key = arguments.text("namespace", namespace), arguments.text("table", table)
        if key not in self._known:
            try:
                self._known[key] = self._connection.schema(*key, once=True)
            except InvalidRequest:
                raise  # a write would fail in the same way
            except ClientError:
                return _UNKNOWN
        return self._known[key]

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
        """A writer; see :meth:`Client.writer`."""
        self._connection.check()
        who.check()
        schema = arguments.schema(schema)
        arguments.text("namespace", namespace), arguments.text("table", table)
        max_unanswered = arguments.integer("max_unanswered", max_unanswered, 1)
        lease = self._lease(who, (namespace, table))
        kind = "delete" if deletes else "write"
        command = put_command(
            kind, namespace, table, lease.origin if lease else None, who.numbers_rows, who.ack
        )
        window = WindowLimits(batches=max_unanswered) if max_unanswered else WindowLimits()
        connection = self._connection
        retry = RetryState(connection.retry, random.random)
        keeps = who.keep_until_durable and lease is not None
        delivery = Delivery(SendWindow(window), lease, retry, keeps=keeps, ack=who.ack)
        asks = lease is not None and (who.keep_until_durable or who.origin is None)
        origin = lease.origin if lease else None
        traced = TracedTable(kind, namespace, table)
        request = RouteRequest((namespace, table), origin, command, schema, asks, traced)
        route = connection.route(request)
        sender = BatchSender(route, delivery, connection.timeout_s)
        return Writer(route, schema, lease, sender, traced)

    def _lease(self, who: WhoWrites, table: tuple[str, str]) -> OriginLease | None:
        if who.origin is None:
            return self._origins.lease(*table) if who.exactly_once else None
        chosen, start = who.first_sequence is None, who.first_sequence
        if start is None:
            start = self._newest(who.origin, table) + 1
        return OriginLease(who.origin, start, exclusive=chosen, numbers_rows=who.numbers_rows)

    def _newest(self, origin: str, table: tuple[str, str]) -> int:
        """The highest known sequence of an origin, in any partition of the table.

        A lost disk may lose one partition's rows while later rows of another one are in files. A
        new batch with one of those sequences would count as a duplicate there.
        """
        marks = [mark for state in self._connection.origins(origin, table) for mark in state.marks]
        known = [state.memory_sequence for state in self._connection.origins(origin)]
        return max((*marks, *(sequence for sequence in known if sequence is not None)), default=0)


def _with_written(exc: InvalidRequest, done: WriteResult) -> InvalidRequest:
    """A refusal that also says what was written before it."""
    return InvalidRequest(
        f"{exc}; the {done.rows} rows before, in {done.batches} operations, were written",
        code=exc.code,
        details={**exc.details, "rows": done.rows, "batches": done.batches},
    )


def _write_each(writer: Writer, batches: Iterator[pa.RecordBatch]) -> None:
    """Write all batches; a refusal is raised after the earlier batches are answered."""
    try:
        for batch in batches:
            writer.write(batch)
    except InvalidRequest:
        with suppress(ClientError):
            writer.flush()
        raise
