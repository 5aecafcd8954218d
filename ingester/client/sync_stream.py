"""A replication stream: messages of one origin, each sent after the answer to the one before.

``docs/protocol.md`` has the rules: the roles of columns, and what opens and closes a transaction.
Only messages that were refused for now are sent again. After a lost connection or a restart of the
daemon, the caller asks for the origin's position and continues there: messages that were only in
the daemon's log may be lost with its disk, and later ones would leave a gap.
"""

import random
import time
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from .connection import Connection
from .errors import ClientError, InvalidRequest, Restarted, Unavailable, of_older_daemon
from .retry import RetryPolicy, RetryState
from .wire import AckLevel, WriteAnswer, encode, given


class SyncColumn(msgspec.Struct, frozen=True):
    """The role of a field of a message: ``old_pk``, ``new_pk``, ``value`` or ``changed``."""

    role: str
    name: str


class SyncContent(msgspec.Struct, frozen=True):
    """What a transaction contains: its row count, and a 64-bit digest of the caller's choice."""

    rows: int
    digest: int


class SyncAnswer(WriteAnswer, frozen=True):
    """The answer to a message; ``code`` and the later fields are set if it is refused for now.

    ``compared``: a duplicate is known to have the content that was sent with it. ``ack`` is None if
    the message closes no transaction, and at daemons of earlier releases.
    """

    ack: str | None = None

    compared: bool = False
    code: str = ""
    message: str = ""
    retry_after_s: float | None = None
    owner: str | None = None
    endpoint: str | None = None


_answer = msgspec.json.Decoder(SyncAnswer).decode
_NOTHING = pa.record_batch([], schema=pa.schema([]))
_DETAILS = ("retry_after_s", "owner", "endpoint")
_NEWER = ("epoch", "content")
"""The fields that an older daemon refuses as unknown; it has applied nothing then."""


class SyncStream:
    """One origin's messages into the tables of one namespace. One thread at a time."""

    def __init__(
        self,
        connection: Connection,
        retry: RetryPolicy,
        namespace: str,
        origin: str,
        ack: AckLevel | None = None,
    ) -> None:
        self._connection = connection
        self._retry = retry
        self.namespace = namespace
        self.origin = origin
        self.ack = ack
        """The level of the stream's transactions; None for that of their tables."""
        self.epoch: int | None = None
        """The epoch of the process that reported the origin's position, else that of the first
        message. A process with another epoch refuses messages."""
        self._tells_epoch = True
        """Whether the daemon accepts the epoch in a message."""
        self._transaction: str | None = None
        """The name of the open transaction, which excludes other clients' messages."""
        self._commit: int | None = None
        """The sequence of a transaction that was sent and is not known to be applied."""

    @property
    def process(self) -> tuple[str, int | None]:
        """The daemon and the epoch of its process. Two daemons may have the same epoch."""
        return self._connection.endpoint, self.epoch

    def beside(self, origin: str) -> "SyncStream":
        """A stream of another origin at the same process of the daemon."""
        stream = SyncStream(self._connection, self._retry, self.namespace, origin, self.ack)
        stream.epoch = self.epoch
        return stream

    def standing(self) -> SyncAnswer:
        """Ask for the origin's position.

        Raises:
            ClientError: The daemon did not answer.
        """
        answer = self._sent({"table": "any"}, _NOTHING)
        self._tells_epoch |= answer.epoch != self.epoch  # it may have another release
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
        content: SyncContent | None = None,
    ) -> SyncAnswer:
        """Send one message until it is accepted; ``sequence`` closes the transaction.

        Args:
            columns: The role of each field of the batch.
            begin: Drop any open transaction, also another client's.
            content: With ``sequence``: a repeat of this sequence with another content is refused.
                It must not depend on how the transaction is divided into messages.

        Returns:
            The answer. If ``first`` is true, another daemon took the earlier messages: send the
            open transaction again from its first message.

        Raises:
            InvalidRequest: The message or the transaction is invalid, or the sequence was committed
                with another content; the transaction is dropped.
            Restarted: The daemon's process has changed and has not applied the message, or the
                stream now goes to the owner of the table. Ask for the origin's position and
                continue there.
            Unavailable: Refused until the retry policy gave up; nothing has changed. With code
                ``superseded``, another client of the origin interfered: start again after a random
                pause.
            Unreachable, TimedOut, UnknownOutcome: Ask for the origin's position.
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
            "content": content,
            "ack": self.ack,
        }
        self._commit = sequence
        retry = RetryState(self._retry, random.random)
        while True:
            try:
                answer = self._sent(given(fields), batch)
            except InvalidRequest as exc:
                if (refused := _refused_as_unknown(fields, exc)) is not None:
                    fields[refused] = None
                    self._tells_epoch &= refused != "epoch"
                    continue
                self._end_transaction()
                raise of_older_daemon(exc, self.ack) from exc
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
                raise Restarted(f"sync: {answer.message}: this stream continues there")
            delay_s = retry.failed(error, time.monotonic())
            if delay_s is None:
                raise self._connection.with_hint(error, "sync")
            time.sleep(delay_s)

    def _end_transaction(self) -> None:
        self._transaction = self._commit = None

    def _sent(self, fields: dict[str, Any], batch: pa.RecordBatch) -> SyncAnswer:
        about = {"type": "sync", "namespace": self.namespace, "origin": self.origin}
        try:
            return _answer(self._connection.exchange(encode(about | fields), batch))
        except ClientError as exc:
            raise self._connection.with_hint(exc, "sync") from exc


def _refused_as_unknown(fields: dict[str, Any], exc: InvalidRequest) -> str | None:
    """The field that an older daemon does not know; None if that is not what is wrong."""
    given_fields = (name for name in _NEWER if fields[name] is not None)
    return next((name for name in given_fields if f"unknown field `{name}`" in str(exc)), None)
