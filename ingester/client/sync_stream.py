"""A replication stream: messages of one origin, each sent when the one before is answered.

The daemon's rules are in ``docs/protocol.md``: what the roles of columns are, what opens
and closes a transaction. What is not taken for now is sent again here, and nothing else is: whoever
loses the connection asks where the origin stands and goes on from there. So does who is told that
the daemon has restarted: what it had in its log only may be lost with its disk, and what came next
would stand behind a gap.
"""

import random
import time
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from .connection import Connection
from .errors import ClientError, InvalidRequest, Restarted, Unavailable
from .retry import RetryPolicy, RetryState
from .wire import Answer, encode, given


class SyncColumn(msgspec.Struct, frozen=True):
    """The role of a field of a message: ``old_pk``, ``new_pk``, ``value`` or ``changed``."""

    role: str
    name: str


class SyncAnswer(Answer, frozen=True):
    """The answer to a message; ``code`` and what follows where it is not taken for now."""

    code: str = ""
    message: str = ""
    retry_after_s: float | None = None
    owner: str | None = None
    endpoint: str | None = None


_answer = msgspec.json.Decoder(SyncAnswer).decode
_NOTHING = pa.record_batch([], schema=pa.schema([]))
_DETAILS = ("retry_after_s", "owner", "endpoint")
_UNKNOWN = "unknown field `epoch`"
"""What a daemon of before says of it, which has taken nothing then."""


class SyncStream:
    """One origin's messages into the tables of one namespace. One thread at a time."""

    def __init__(
        self, connection: Connection, retry: RetryPolicy, namespace: str, origin: str
    ) -> None:
        self._connection = connection
        self._retry = retry
        self.namespace = namespace
        self.origin = origin
        self.epoch: int | None = None
        """The epoch of the daemon's process that has told last where the origin stands, else of the
        one that took the first message. Another one takes nothing."""
        self._tells_epoch = True
        """Whether the daemon takes what a message says of its epoch."""
        self._transaction: str | None = None
        """The name of the open transaction: another client's messages do not fit into it."""
        self._commit: int | None = None
        """The transaction's sequence, from its sending until the daemon is known to have it."""

    @property
    def process(self) -> tuple[str, int | None]:
        """The daemon and its process. Epochs are a daemon's own: two may have the same."""
        return self._connection.endpoint, self.epoch

    def beside(self, origin: str) -> "SyncStream":
        """A stream of another origin at the same daemon, which counts on the same process."""
        stream = SyncStream(self._connection, self._retry, self.namespace, origin)
        stream.epoch = self.epoch
        return stream

    def standing(self) -> SyncAnswer:
        """The origin's position; nothing is changed.

        Raises:
            ClientError: the daemon did not answer.
        """
        answer = self._sent({"table": "any"}, _NOTHING)
        self._tells_epoch |= answer.epoch != self.epoch  # it may be of another release by now
        self.epoch, memory = answer.epoch, answer.memory_sequence
        if self._commit is not None and memory is not None and self._commit <= memory:
            self._end_transaction()
        return answer

    def send(
        self,
        table: str,
        columns: Sequence[SyncColumn],
        batch: pa.RecordBatch,
        *,
        begin: bool = False,
        sequence: int | None = None,
    ) -> SyncAnswer:
        """Send one message until it is taken; with a ``sequence`` it closes the transaction.

        Args:
            columns: the role of each of the batch's fields.
            begin: forget what is open, also of another client.

        Returns:
            The answer. Where its ``first`` is true, another daemon took the message before: what
            was open has to be sent again from its first message on.

        Raises:
            InvalidRequest: the message, or the transaction, is no good; it is gone.
            Restarted: the daemon is another process than the one before, and has not taken it; or
                the stream is now at another daemon, which the one before has named as the owner of
                the table. Ask where the origin stands, and go on from there.
            Unavailable: not taken until the retry policy gave up; nothing has changed. Code
                ``superseded``: another client of the origin has come in between; begin anew, after
                a pause of random length.
            Unreachable, TimedOut, UnknownOutcome: ask where the origin stands.
        """
        if begin:
            self._transaction = uuid.uuid4().hex
        fields: dict[str, Any] = {
            "table": table,
            "columns": list(columns),
            "begin": begin or None,
            "sequence": sequence,
            "transaction": self._transaction,
            "epoch": self.epoch if self._tells_epoch else None,
        }
        self._commit = sequence
        retry = RetryState(self._retry, random.random)
        while True:
            try:
                answer = self._sent(given(fields), batch)
            except InvalidRequest as exc:
                if fields["epoch"] is not None and _UNKNOWN in str(exc):
                    self._tells_epoch, fields["epoch"] = False, None
                    continue
                self._end_transaction()
                raise
            if self.epoch not in (None, answer.epoch):
                self._end_transaction()
                raise Restarted(f"sync: the daemon has restarted: {answer.message}")
            self.epoch = answer.epoch
            if answer.accepted and sequence is not None:
                self._end_transaction()
            if answer.accepted or answer.first:
                return answer
            details = given({name: getattr(answer, name) for name in _DETAILS})
            error = Unavailable(answer.message, code=answer.code, details=details)
            owner = self._connection.of_owner(error, (self.namespace, self.origin))
            if owner is not None:
                self._end_transaction()
                self._connection = owner
                raise Restarted(f"sync: {answer.message}: this stream goes on there")
            delay_s = retry.failed(error, time.monotonic())
            if delay_s is None:
                raise self._connection.told(error, "sync")
            time.sleep(delay_s)

    def _end_transaction(self) -> None:
        self._transaction = self._commit = None

    def _sent(self, fields: dict[str, Any], batch: pa.RecordBatch) -> SyncAnswer:
        about = {"type": "sync", "namespace": self.namespace, "origin": self.origin}
        try:
            return _answer(self._connection.exchange(encode(about | fields), batch))
        except ClientError as exc:
            raise self._connection.told(exc, "sync") from exc
