"""The writers of a client are opened here, each under its origin and from its first sequence.

an origin is named ──▶ from its first sequence, or one after what the daemon knows of it
none, exactly once ──▶ a made-up one, lent by the client's pool
none               ──▶ no origin: what a lost connection has left open stays unknown
"""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import pyarrow as pa

from . import arguments
from .calls import Calls
from .errors import ClientError, InvalidRequest
from .fitting import Fitting
from .inputs import TABLE_BATCH_BYTES, Data, batches_of, only_one
from .origins import OriginLease, OriginPool
from .route import WayOf
from .tracing import TracedTable
from .window import WindowLimits
from .wire import WriteResult, put_command
from .writer import Writer, WriterOptions

_UNKNOWN = pa.schema([])


class WhoWrites(NamedTuple):
    """The writer's origin and sequences: arguments of ``Client.writer``."""

    origin: str | None
    first_sequence: int | None
    exactly_once: bool
    keep_until_durable: bool = False
    numbers_rows: bool = False

    def check(self) -> None:
        """Refuse what does not go together, or is not of its form.

        Raises:
            InvalidRequest: the message says what does not fit.
        """
        if self.origin is not None:
            arguments.text("origin", self.origin)
        elif self.first_sequence is not None:
            raise InvalidRequest(
                "first_sequence needs an origin, as origin='station-7': a sequence says nothing"
                " without who wrote it"
            )
        elif self.keep_until_durable and not self.exactly_once:
            raise InvalidRequest("keep_until_durable needs an origin, or exactly_once")
        arguments.integer("first_sequence", self.first_sequence, 0)


class Writers:
    """Opens the writers of one client. Any thread."""

    def __init__(self, connection: Calls) -> None:
        self._connection = connection
        self._origins = OriginPool()
        self._known: dict[tuple[str, str], pa.Schema] = {}
        """The schemas of tables that were written to: a type changes only where a copy makes the
        table anew."""

    def write_all(
        self, namespace: str, table: str, data: Data, who: WhoWrites, *, deletes: bool = False
    ) -> WriteResult:
        """Write ``data``; return the result once all is acknowledged. See ``Client.write``."""
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
            # What does not fit is refused before anything is sent, where all of it is here.
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
                        continue  # it was brought to types that the table had before
                    raise
                raise _with_written(exc, writer.acknowledged) from exc

    def _fitted(
        self, table: tuple[str, str], sent: pa.Schema, batches: Sequence[pa.RecordBatch]
    ) -> tuple[Fitting, list[pa.RecordBatch]]:
        """The batches in the table's types, and what brings more of them to these."""
        was_known = table in self._known
        fitted = Fitting(sent, self._known_schema(*table))
        try:
            return fitted, [fitted(batch) for batch in batches]
        except InvalidRequest:
            if not was_known:
                raise
            del self._known[table]  # the types may be others by now
            return self._fitted(table, sent, batches)

    def _known_schema(self, namespace: str, table: str) -> pa.Schema:
        """The table's schema, as far as it is known: the daemon judges the rest."""
        key = arguments.text("namespace", namespace), arguments.text("table", table)
        if key not in self._known:
            try:
                self._known[key] = self._connection.schema(*key, once=True)
            except InvalidRequest:
                raise  # of the client, or the name: a write would meet the same
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
        """A writer; see ``Client.writer``."""
        self._connection.check()
        who.check()
        schema = arguments.schema(schema)
        arguments.text("namespace", namespace), arguments.text("table", table)
        max_unanswered = arguments.integer("max_unanswered", max_unanswered, 1)
        lease = self._lease(who, (namespace, table))
        kind = "delete" if deletes else "write"
        command = put_command(kind, namespace, table, lease.origin if lease else None)
        window = WindowLimits(batches=max_unanswered) if max_unanswered else WindowLimits()
        connection = self._connection
        options = WriterOptions(
            window=window,
            answer_timeout_s=connection.timeout_s,
            retry=connection.retry,
            keep=who.keep_until_durable and lease is not None,
        )
        asks = lease is not None and (who.keep_until_durable or who.origin is None)
        origin = lease.origin if lease else None
        traced = TracedTable(kind, namespace, table)
        way = WayOf((namespace, table), origin, command, schema, asks, traced)
        return Writer(connection.route(way), schema, lease, options, traced)

    def _lease(self, who: WhoWrites, table: tuple[str, str]) -> OriginLease | None:
        if who.origin is None:
            return self._origins.lease(*table) if who.exactly_once else None
        chosen, start = who.first_sequence is None, who.first_sequence
        if start is None:
            start = self._newest(who.origin, table) + 1
        return OriginLease(who.origin, start, exclusive=chosen, numbers_rows=who.numbers_rows)

    def _newest(self, origin: str, table: tuple[str, str]) -> int:
        """The highest sequence that is known of an origin, in whatever part of the table.

        A lost disk may leave one partition's rows in files and take another's, which came before:
        a new batch under one of their sequences would be taken for theirs, in that partition.
        """
        marks = [mark for state in self._connection.origins(origin, table) for mark in state.marks]
        return max((*marks, self._position(origin) or 0))

    def _position(self, origin: str) -> int | None:
        known = [state.memory_sequence for state in self._connection.origins(origin)]
        return max((sequence for sequence in known if sequence is not None), default=None)


def _with_written(exc: InvalidRequest, done: WriteResult) -> InvalidRequest:
    """A refusal that says what was written before it."""
    return InvalidRequest(
        f"{exc}; the {done.rows} rows before, in {done.batches} operations, were written",
        code=exc.code,
        details={**exc.details, "rows": done.rows, "batches": done.batches},
    )


def _write_each(writer: Writer, batches: Iterator[pa.RecordBatch]) -> None:
    """Write all batches; a refusal is raised once the fate of the batches before it is known."""
    try:
        for batch in batches:
            writer.write(batch)
    except InvalidRequest:
        with suppress(ClientError):
            writer.flush()
        raise
