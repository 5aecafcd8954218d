"""An answer on its way to its client: what its trace notes from the ticket to the last part.

    parse ─▶ snapshot ─▶ scan ─▶ send ─▶ scan ─▶ send …

Law of this file: in the thread that answers. The first 16 parts have spans of their own; of all of
them the span says how long it took to read them, and to hand them to the client.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol, TypeVar

from opentelemetry.trace import Span

from ingester.observability.tracing.tracer import Attributes, Tracer, failed

if TYPE_CHECKING:
    from pyarrow import RecordBatch

PART_SPANS = 16
"""The parts of an answer that have spans of their own."""


class Part(Protocol):
    """A part of an answer."""

    @property
    def batch(self) -> RecordBatch:
        """The rows."""

    @property
    def partition(self) -> str:
        """The partition that they are of."""

    @property
    def source(self) -> str:
        """Where they come from: ``buffer`` or ``file``."""


P = TypeVar("P", bound=Part)


class QueryTrace:
    """The trace of one query, whose span has begun."""

    def __init__(self, tracer: Tracer, span: Span, began_ns: int) -> None:
        self._tracer = tracer
        self._span = span
        self._context = span.get_span_context()
        self._at_ns = began_ns
        self._rows = self._parts = self._scan_ns = self._send_ns = 0

    def step(self, name: str, attributes: Attributes | None = None) -> None:
        """Make the span of a step that is over, and began when the one before it was."""
        began_ns, self._at_ns = self._at_ns, time.time_ns()
        between = (began_ns, self._at_ns)
        self._tracer.past(name, between, attributes or {}, parent=self._context)

    def watched(self, parts: Iterator[P]) -> Iterator[P]:
        """Give the parts on, and end the span with the last; holds none while it is sent."""
        self._at_ns = time.time_ns()
        try:
            while (part := next(parts, None)) is not None:
                held = [part]
                self._scanned(part)
                del part
                yield held.pop()
                self._sent()
        except BaseException as exc:
            failed(self._span, exc)
            raise
        finally:
            self._end()

    def refused(self, error: BaseException) -> None:
        """End the span: there is no answer."""
        failed(self._span, error)
        self._span.end()

    def _scanned(self, part: Part) -> None:
        began_ns = self._at_ns
        self._parts += 1
        rows = part.batch.num_rows
        self._rows += rows
        if self._parts <= PART_SPANS:
            facts = {"ingester.partition": part.partition, "ingester.source": part.source}
            self.step("scan", {**facts, "ingester.rows": rows})
        else:
            self._at_ns = time.time_ns()
        self._scan_ns += self._at_ns - began_ns

    def _sent(self) -> None:
        began_ns = self._at_ns
        if self._parts <= PART_SPANS:
            self.step("send")
        else:
            self._at_ns = time.time_ns()
        self._send_ns += self._at_ns - began_ns

    def _end(self) -> None:
        self._span.set_attributes(
            {
                "db.response.returned_rows": self._rows,
                "ingester.parts": self._parts,
                "ingester.scan": self._scan_ns / 1e9,
                "ingester.send": self._send_ns / 1e9,
            }
        )
        self._span.end()
