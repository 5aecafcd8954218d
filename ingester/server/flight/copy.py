"""DoPut of a copy: batches of one schema, each answered with the number of rows of the copy so far.

Work per byte is done here, in gRPC's thread, before the copy takes the rows: they are checked,
converted to the table's columns and split by partition. A refused batch leaves nothing behind and
ends the stream, not the copy.
"""

from __future__ import annotations

from typing import Any

from ingester.copies.copies import Copies
from ingester.copies.table_copy import CopyName, IncomingCopy
from ingester.server.flight.put_reader import (
    PutLimits,
    batch_of,
    frames_cleared,
    next_chunk,
    schema_of,
)
from ingester.server.flight.refusals import says_answered
from ingester.server.flight.requests import CopyCommand
from ingester.server.portal import Portal
from ingester.write.answer import CopyAnswer, encode_answer, send_answer
from ingester.write.operation_maker import OperationMaker


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
        while (chunk := next_chunk(reader)) is not None:
            batch = batch_of(chunk)
            split = operations.split(normaliser, batch)
            del chunk, batch
            rows = copy.files.add(split)
            del split  # not held while the next one is awaited
            send_answer(writer, encode_answer(CopyAnswer(rows=rows)))
            self._answers += 1
