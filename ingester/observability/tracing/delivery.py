"""Spans on their way to a receiver: a bounded queue, and a thread of the SDK's that sends.

    a part ─▶ queue (``tracing.queue_spans``) ─▶ the SDK's thread ─▶ exporter ─▶ receiver
               └ full: dropped, counted            refused, away: failed, counted

Law of this file: whoever hands a span in never waits, whatever the receiver does. Each span is
counted once: as sent, failed or dropped. The SDK's own queue would drop without a count and write a
line for each; so it is made larger than what is ever let into it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

import structlog
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from ingester.observability.tracing.counts import SpanCounts

log = structlog.get_logger(__name__)

BEYOND = 100_000
"""The places that the SDK's queue has beside ours, more than any of its batches takes."""
_LIBRARY = "opentelemetry.exporter"


class SpanQueue(SpanProcessor):
    """Takes ended spans, as many as may wait. Any thread.

    Args:
        most: the spans that may wait, those included that are being sent.
        receiver: the exporter's receiver, as warnings name it.
    """

    def __init__(self, exporter: SpanExporter, most: int, receiver: str = "") -> None:
        self._most, self._receiver = most, receiver
        self._full = False
        """Whether spans were dropped since the queue was empty last: told once."""
        self._lock = threading.Lock()
        self._waiting = self._sent = self._failed = self._dropped = 0
        counting = _CountingExporter(exporter, self._settled, receiver)
        self._inner = BatchSpanProcessor(counting, max_queue_size=most + BEYOND)

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Do nothing: a span counts when it is over."""

    def on_end(self, span: ReadableSpan) -> None:
        """Take a span, or drop it where too many wait."""
        with self._lock:
            if is_kept := self._waiting < self._most:
                self._waiting += 1
            else:
                self._dropped += 1
            told, self._full = self._full, self._full or not is_kept
        if is_kept:
            self._inner.on_end(span)
        elif not told:
            log.warning(
                "spans dropped",
                error=f"tracing.queue_spans: {self._most} wait: the receiver is slow, or hangs",
                receiver=self._receiver,
                runbook="spans-lost",
            )

    def _settled(self, spans: int, sent: bool) -> None:
        with self._lock:
            self._waiting -= spans
            self._full = self._full and self._waiting > 0
            if sent:
                self._sent += spans
            else:
                self._failed += spans

    def counts(self) -> SpanCounts:
        """Count what became of the spans so far."""
        with self._lock:
            return SpanCounts(self._sent, self._failed, self._dropped, self._waiting)

    def shutdown(self) -> None:
        """Send what waits, for as long as the SDK tries; the caller bounds that."""
        self._inner.shutdown()  # type: ignore[no-untyped-call]

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Send what waits now."""
        return self._inner.force_flush(timeout_millis)


class _LastWords(logging.Handler):
    """Keeps what the exporter's library says instead of writing a line for each try."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message."""
        self.text = " ".join(record.getMessage().split())


class _CountingExporter(SpanExporter):
    """An exporter that counts, and tells once when its receiver goes away, and when it is back."""

    def __init__(
        self, inner: SpanExporter, settled: Callable[[int, bool], None], receiver: str
    ) -> None:
        self._receiver = receiver
        self._inner = inner
        self._settled = settled
        self._away = False
        self._said = _LastWords()
        library = logging.getLogger(_LIBRARY)
        library.handlers, library.propagate = [self._said], False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch."""
        sent, error = False, ""
        try:
            sent = self._inner.export(spans) is SpanExportResult.SUCCESS
        except Exception as exc:
            error = f"{type(exc).__name__}: {exc}"
        self._settled(len(spans), sent)
        if sent == self._away:
            self._away = not sent
            if sent:
                log.info("spans are sent again", receiver=self._receiver)
            else:
                told = error or self._said.text or "the receiver refused them"
                log.warning(
                    "spans not sent",
                    error=told,
                    receiver=self._receiver,
                    spans=len(spans),
                    runbook="spans-lost",
                )
        return SpanExportResult.SUCCESS if sent else SpanExportResult.FAILURE

    def shutdown(self) -> None:
        """Close the connection."""
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Do nothing: each batch is sent when it is handed in."""
        return True
