"""DoPut of a replication client: messages of transactions, and the rows of a table's copy.

    sync    one message and one answer in a call
    copy    batches of one schema, each answered with the number of rows of the copy so far

Work per byte is done here, in gRPC's thread. A refusal of a message that a retry may solve is an
answer, not an error: nothing has changed then. A refused batch of a copy leaves nothing behind and
ends the stream, not the copy.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
from msgspec.structs import astuple, replace

from ingester.config.levels import parse_level
from ingester.copies.copies import Copies
from ingester.copies.table_copy import CopyName, IncomingCopy
from ingester.errors import BadRequest, IngesterError, Refused, kind_of, limit_of
from ingester.replication.messages import SyncLayout, TypedChanges
from ingester.replication.open_transactions import Message, StreamIdentity, TypedMessage
from ingester.replication.service import OriginProgress
from ingester.schema.expansion import shown_bytes
from ingester.schema.normalise import validate_fully
from ingester.server.flight.put_messages import (
    PutLimits,
    batch_of,
    encode_answer,
    frames_cleared,
    next_chunk,
    schema_of,
    send_answer,
)
from ingester.server.flight.refusals import says_answered, shortened
from ingester.server.flight.requests import CopyCommand, SyncCommand
from ingester.server.portal import Portal
from ingester.server.services import Services
from ingester.write.acknowledgement import PutAnswer
from ingester.write.operation_maker import OperationMaker
from persist.manifest.actions import Content


class SyncPutAnswer(PutAnswer, frozen=True):
    """The answer to a replication message; the fields from ``code`` on explain a refusal."""

    compared: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether the content of a duplicate was compared; only if the message has a content."""
    code: str | msgspec.UnsetType = msgspec.UNSET
    message: str | msgspec.UnsetType = msgspec.UNSET
    retry_after_s: float | msgspec.UnsetType = msgspec.UNSET
    owner: str | msgspec.UnsetType = msgspec.UNSET
    endpoint: str | msgspec.UnsetType = msgspec.UNSET


class CopyAnswer(msgspec.Struct, frozen=True):
    """The answer to a batch of a copy, with the rows that the copy has so far."""

    rows: int
    accepted: bool = True


class SyncCall:
    """One DoPut call with a replication message."""

    def __init__(
        self, portal: Portal, services: Services, command: SyncCommand, limits: PutLimits
    ) -> None:
        self._portal = portal
        self._replication = services.replication
        self._command = command
        self._max_batch_bytes = limits.max_batch_bytes
        self._shapes = limits.shapes
        self._epoch = services.writer.epoch
        self._limit_refused = services.metrics.limit_refused
        self._identity = StreamIdentity(
            command.origin,
            command.transaction,
            command.begin,
            command.epoch in (None, self._epoch),
            command.epoch == self._epoch,
        )

    def serve(self, reader: Any, writer: Any) -> None:
        """Take the message and answer it; raise errors that a retry cannot solve."""
        with frames_cleared():
            self._serve(reader, writer)

    def _serve(self, reader: Any, writer: Any) -> None:
        try:
            batch = self._first_batch(reader)
            standing = self._portal.call(self._replication.take, self._message(batch))
            answer = self._answer(True, standing)
        except BaseException as exc:
            if not isinstance(exc, Refused) or exc.retry_after_s is None:
                self._portal.call(self._replication.give_up, self._identity)
                raise
            answer = self._later(exc, exc.retry_after_s)
        # Before the end of the call: a client may wait for the answer first.
        send_answer(writer, encode_answer(answer))
        if next_chunk(reader, self._max_batch_bytes) is not None:
            raise BadRequest("sync: a call has one message, this one sends a second batch")

    def _first_batch(self, reader: Any) -> pa.RecordBatch | None:
        """Read the call's batch; None without one, or without rows."""
        schema_of(reader, self._shapes)
        chunk = next_chunk(reader, self._max_batch_bytes)
        if chunk is None:
            return None
        batch = batch_of(chunk)
        return batch if batch.num_rows else None

    def _message(self, batch: pa.RecordBatch | None) -> Message:
        command = self._command
        commits_as = command.sequence if command.last else None
        rows = None if batch is None else self._typed(batch)
        table = (command.namespace, command.table)
        content = None if command.content is None else Content(*astuple(command.content))
        ack = parse_level("descriptor", command.ack)
        return Message(self._identity, commits_as, rows, table, command.sequence, content, ack)

    def _typed(self, batch: pa.RecordBatch) -> TypedMessage:
        command = self._command
        if (nbytes := batch.get_total_buffer_size()) > self._max_batch_bytes:
            raise _too_large(nbytes, self._max_batch_bytes)
        try:
            batch.validate()
            if (shown := sum(map(shown_bytes, batch.columns))) > 2 * self._max_batch_bytes:
                raise _too_large(shown, self._max_batch_bytes)
            validate_fully([batch])
        except pa.ArrowInvalid as exc:
            raise BadRequest(f"batch is not valid: {exc}") from exc
        layout = SyncLayout(command.columns, batch.schema)
        table = (command.namespace, command.table)
        definition = self._portal.call(self._replication.plan, self._identity, table, layout)
        typed = TypedChanges(layout, definition)
        if (plain := typed.most_bytes(batch)) > 2 * self._max_batch_bytes:
            raise _too_large(plain, self._max_batch_bytes)
        changes = typed(batch)
        return TypedMessage(table, definition, changes, changes.nbytes)

    def _later(self, error: IngesterError, retry_after_s: float) -> SyncPutAnswer:
        if (limit := limit_of(error)) is not None:
            self._limit_refused(limit)
        standing = self._portal.call(self._replication.stand, self._command.origin)
        owner, endpoint = (error.details.get(name) for name in ("owner", "endpoint"))
        return replace(
            self._answer(False, standing),
            code=kind_of(error).code,
            message=shortened(error.message),
            retry_after_s=retry_after_s,
            owner=msgspec.UNSET if owner is None else str(owner),
            endpoint=msgspec.UNSET if endpoint is None else str(endpoint),
        )

    def _answer(self, accepted: bool, standing: OriginProgress) -> SyncPutAnswer:
        told = standing._asdict()
        if self._command.content is None:
            del told["compared"]
        return SyncPutAnswer(accepted=accepted, epoch=self._epoch, **told)


def _too_large(nbytes: float, limit: int) -> BadRequest:
    return BadRequest(
        f"sync: message has {nbytes:.0f} B; flight.max_batch_bytes is {limit}: send smaller ones"
    )


class CopyCall:
    """One DoPut call with rows of a copy."""

    def __init__(
        self, portal: Portal, copies: Copies, command: CopyCommand, limits: PutLimits
    ) -> None:
        self._portal = portal
        self._copies = copies
        self._command = command
        self._shapes = limits.shapes
        self._operations = OperationMaker(limits.max_batch_bytes)
        self._answers = 0

    def serve(self, reader: Any, writer: Any) -> None:
        """Answer batches until the client has finished; raise what ends the call."""
        with says_answered(lambda: self._answers), frames_cleared():
            command = self._command
            name = CopyName((command.namespace, command.table), command.copy)
            key, sent = tuple(command.primary_key), schema_of(reader, self._shapes)
            copy = self._portal.call(self._copies.open, name, key, sent)
            try:
                self._take(copy, reader, writer)
            finally:
                self._portal.post(self._copies.closed, copy)

    def _take(self, copy: IncomingCopy, reader: Any, writer: Any) -> None:
        normaliser, operations = copy.normaliser(), self._operations
        while (chunk := next_chunk(reader, operations.max_batch_bytes)) is not None:
            batch = batch_of(chunk)
            split = operations.ordered(normaliser, batch).parts()
            del chunk, batch
            rows = copy.files.add(split)
            del split  # not held while the next one is awaited
            send_answer(writer, encode_answer(CopyAnswer(rows=rows)))
            self._answers += 1
