"""The SDK's provider: sampler, batch processor and OTLP exporter, all as the SDK has them.

    root span                      one of 1 / ``tracing.sample``, by its trace id
      that links to a traced span  always: a group commit or a flush with traced rows
    the caller's span is sampled   always, up to ``tracing.max_asked_per_s``; beyond it by chance
    it is not sampled              never
    a span below one of ours       as the one above

Importing this module imports the SDK.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Sequence
from typing import Protocol
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.sdk.environment_variables import OTEL_BSP_MAX_EXPORT_BATCH_SIZE
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    ParentBased,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)
from opentelemetry.trace import Link, SpanKind, TraceState
from opentelemetry.util.types import Attributes

from ingester import __version__
from ingester.config.otel_variables import TracingChoice

SDK_BATCH = 512
"""The SDK's default batch."""


class SpanWriter(Protocol):
    """The daemon that the spans come from."""

    @property
    def ingester_id(self) -> str:
        """The stable name."""

    @property
    def incarnation(self) -> str:
        """The name of this process."""

    @property
    def epoch(self) -> int:
        """The number of this start."""


def make_provider(choice: TracingChoice, writer: SpanWriter) -> TracerProvider:
    """Return a provider that samples and sends by ``choice``."""
    sampler = None if choice.sample is None else make_sampler(choice.sample, choice.max_asked_per_s)
    provider = TracerProvider(sampler=sampler, resource=_resource(writer), shutdown_on_exit=False)
    most = choice.queue_spans
    asked = os.environ.get(OTEL_BSP_MAX_EXPORT_BATCH_SIZE, "")
    # The SDK refuses a batch that is larger than the queue.
    batch = min(most, int(asked) if asked.isdecimal() else SDK_BATCH)
    provider.add_span_processor(
        BatchSpanProcessor(_exporter(choice), max_queue_size=most, max_export_batch_size=batch)
    )
    # Each batch that fails ends with an error; the warning of each retry before it says no more.
    logging.getLogger("opentelemetry.exporter").setLevel(logging.ERROR)
    return provider


def close_provider(provider: TracerProvider, within_s: float) -> bool:
    """Send the queued spans and close the exporter. Blocks.

    Returns:
        False if that took longer than ``within_s``: the rest is lost.
    """
    # The SDK waits up to 30 s for a receiver that hangs; a daemon thread does not hold up the stop.
    thread = threading.Thread(target=provider.shutdown, name="tracing-close", daemon=True)
    thread.start()
    thread.join(within_s)
    return not thread.is_alive()


def make_sampler(share: float, max_asked_per_s: int) -> Sampler:
    """Return the sampler of ``tracing.sample`` and ``tracing.max_asked_per_s``."""
    return ParentBased(
        root=LinkedOr(TraceIdRatioBased(share)),
        remote_parent_sampled=AskedPerSecond(max_asked_per_s, share),
    )


class LinkedOr(Sampler):
    """Samples a root span that links to a sampled span of this process; else asks ``other``."""

    def __init__(self, other: Sampler) -> None:
        self._other = other

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        """Decide about a span."""
        contexts = [link.context for link in links or ()]
        linked = any(each.trace_flags.sampled and not each.is_remote for each in contexts)
        sampler = ALWAYS_ON if linked else self._other
        return sampler.should_sample(
            parent_context, trace_id, name, kind, attributes, links, trace_state
        )

    def get_description(self) -> str:
        """Return a text for people."""
        return f"LinkedOr({self._other.get_description()})"


class AskedPerSecond(Sampler):
    """Samples ``most`` spans a second, and a share of the others. Any thread; may count one less.

    The share is not taken by the trace id, which a caller chooses.
    """

    def __init__(self, most: int, share: float) -> None:
        self._most, self._share = most, share
        self._second = self._taken = 0

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        """Decide about a span."""
        sampler = ALWAYS_ON if self._take() or random.random() < self._share else ALWAYS_OFF
        return sampler.should_sample(
            parent_context, trace_id, name, kind, attributes, links, trace_state
        )

    def get_description(self) -> str:
        """Return a text for people."""
        return f"AskedPerSecond({self._most}, {self._share})"

    def _take(self) -> bool:
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._taken = second, 0
        self._taken += 1
        return self._taken <= self._most


def _exporter(choice: TracingChoice) -> SpanExporter:
    """The exporter; without an endpoint here it reads its variables itself."""
    if choice.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as over_grpc

        return over_grpc.OTLPSpanExporter(endpoint=choice.endpoint)
    from opentelemetry.exporter.otlp.proto.http import trace_exporter as over_http

    endpoint = choice.endpoint
    if endpoint is not None and not urlsplit(endpoint).path.strip("/"):
        endpoint = endpoint.rstrip("/") + "/v1/traces"
    return over_http.OTLPSpanExporter(endpoint=endpoint)


def _resource(writer: SpanWriter) -> Resource:
    """The attributes of all spans; ``OTEL_RESOURCE_ATTRIBUTES`` and ``OTEL_SERVICE_NAME`` win."""
    attributes: dict[str, str | int] = {
        "service.name": "ingester",
        "service.version": __version__,
        "service.instance.id": writer.ingester_id,
        "ingester.incarnation": writer.incarnation,
        "ingester.epoch": writer.epoch,
    }
    return Resource.create(attributes).merge(OTELResourceDetector().detect())
