"""The streams of one connection of a writer, and the possible errors on them.

A stream is replaced well before its deadline, so that an expired deadline means that the daemon
was stopped; its unanswered batches may still be applied. A refusal is final for all unanswered
batches only if all earlier answers could be read. A daemon that was stopped may serve the newer
stream first; that one is then ended by the abandoned stream, since no other client has the
writer's origin.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from tests.crash.rows import NAMESPACE, SCHEMA, batch_of
from tests.crash.states import checkpoint_of

CLIENT_TIMEOUT_S = 3.0
"""The deadline of every call of the campaign's clients: shorter than the longer pauses."""
STREAM_AGE_S = 1.0
LONGEST_RETRY_S = 0.3
RETRYABLE = {"memory", "saturated", "disk_full", "limit", "store", "stale"}
ERRORS = (fl.FlightError, pa.ArrowException, OSError)


class Refused(Exception):
    """Raised when the daemon refuses for now; no unanswered batch was applied."""


class Unclear(Exception):
    """Raised when unanswered batches may be applied now, later or never."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows ``start .. start + count`` of a writer in one table."""

    start: int
    count: int
    sequence: int


@dataclass(slots=True)
class Stream:
    """One open call."""

    out: Any
    answers: Any
    opened_at: float


class Session:
    """The streams of one connection, one per table."""

    def __init__(
        self,
        client: fl.FlightClient,
        origin: str | None,
        *,
        gave_up: bool,
        ack: str | None = None,
    ) -> None:
        """Open no stream yet.

        Args:
            gave_up: The writer has abandoned a stream of an earlier session.
            ack: The level to ask for; the table's by default.
        """
        self._ack = ack
        self._client = client
        self._origin = origin
        self._gave_up = gave_up
        self._streams: dict[str, Stream] = {}

    def exchange(
        self, table: str, writer: int, batches: list[Batch]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Send all batches, then yield (index, answer) in order.

        Raises:
            Refused: A batch was refused for now; the stream has ended.
            Unclear: No answer arrived in time, or answers were lost; the stream has ended.
            FlightError, ArrowException: The daemon is gone or rejects the request.
        """
        stream, cut = self._stream(table), False
        try:
            try:
                self._send(stream.out, writer, batches)
            except ERRORS:
                cut = True
            for index in range(len(batches)):
                answer = stream.answers.read()
                if not answer:
                    raise OSError("the stream ended without an answer")
                yield index, json.loads(answer.to_pybytes())
        except ERRORS as exc:
            self._streams.pop(table, None)
            reason = _reason_of(stream.out, exc)
            if self._gave_up and _told(reason).get("code") == "superseded":
                raise Unclear from exc
            try:
                raise_what_it_means(reason, exc)
            except Refused:
                if not cut:
                    raise
                # pyarrow discards the answers of a stream that ends while it is written to.
                raise Unclear from exc

    def finish(self, table: str) -> None:
        """Half-close a stream and wait for its end."""
        stream = self._streams.pop(table, None)
        if stream is not None:
            try:
                stream.out.done_writing()
                stream.out.close()
            except ERRORS as exc:
                raise_what_it_means(exc, exc)

    def _send(self, out: Any, writer: int, batches: list[Batch]) -> None:
        for batch in batches:
            rows = batch_of(writer, batch.start, batch.count)
            said: dict[str, Any] = {} if self._origin is None else {"sequence": batch.sequence}
            if (checkpoint := checkpoint_of(writer, batch.start, batch.count)) is not None:
                said["checkpoint"] = checkpoint
            if said:
                out.write_with_metadata(rows, json.dumps(said).encode())
            else:
                out.write_batch(rows)

    def _stream(self, table: str) -> Stream:
        stream = self._streams.get(table)
        if stream is not None:
            if time.monotonic() - stream.opened_at < STREAM_AGE_S:
                return stream
            self.finish(table)
        descriptor = fl.FlightDescriptor.for_path(NAMESPACE, table)
        wishes = {"origin": self._origin, "ack": self._ack}
        asked = {name: wish for name, wish in wishes.items() if wish is not None}
        if asked:
            command = {"type": "write", "namespace": NAMESPACE, "table": table}
            descriptor = fl.FlightDescriptor.for_command(json.dumps({**command, **asked}))
        options = fl.FlightCallOptions(timeout=CLIENT_TIMEOUT_S)
        opened_at = time.monotonic()
        try:
            out, answers = self._client.do_put(descriptor, SCHEMA, options)
        except ERRORS as exc:
            raise_what_it_means(exc, exc)
            raise
        stream = self._streams[table] = Stream(out, answers, opened_at)
        return stream


def raise_what_it_means(reason: Exception, cause: Exception) -> None:
    """Raise ``Refused`` after a moment, ``Unclear``, or the reason if the connection is gone."""
    extra = _told(reason)
    if extra.get("code") in RETRYABLE:
        time.sleep(min(extra.get("retry_after_s", 0.1), LONGEST_RETRY_S))
        raise Refused from cause
    if isinstance(reason, fl.FlightTimedOutError):
        raise Unclear from cause
    raise reason from cause


def _told(reason: Exception) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(getattr(reason, "extra_info", None) or b"{}")
    return told


def _reason_of(out: Any, first: Exception) -> Exception:
    """Return the daemon's reason, which may arrive only with the close of the stream."""
    if getattr(first, "extra_info", None):
        return first
    try:
        out.close()
    except ERRORS as exc:
        return exc
    return first
