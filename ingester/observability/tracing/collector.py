"""The provider of spans and its exporter of OTLP, made from settings and ``OTEL_*`` variables.

Law of this file: the SDK is imported only where something is to be traced. Where the process has a
provider of its own already (``opentelemetry-instrument``), that one is used as it is.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

import structlog

from ingester import __version__
from ingester.config.otel_variables import TracingChoice, tracing_choice
from ingester.config.settings import ConfigError, TracingSettings

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import SpanExporter

    from ingester.observability.tracing.calls import Traces

log = structlog.get_logger(__name__)

NEEDS = "needs the extra otel: pip install 'ingester[otel]'"


class Writer(Protocol):
    """The daemon that sends spans: its names and its epoch."""

    @property
    def ingester_id(self) -> str:
        """The stable name."""

    @property
    def incarnation(self) -> str:
        """The name of this process."""

    @property
    def epoch(self) -> int:
        """The number of its start."""


def check_tracing(settings: TracingSettings, environ: Mapping[str, str] | None = None) -> None:
    """Check what :func:`open_traces` would refuse, before anything else is begun.

    Raises:
        ConfigError: as there.
    """
    choice = tracing_choice(settings, environ)
    if choice is not None and not choice.by_environment and not _installed(choice):
        raise ConfigError(choice.asked_by, NEEDS)


def _installed(choice: TracingChoice) -> bool:
    parts = "opentelemetry.sdk", f"opentelemetry.exporter.otlp.proto.{choice.protocol}"
    try:
        return all(importlib.util.find_spec(part) for part in parts)
    except ImportError:
        return False


def open_traces(
    settings: TracingSettings, writer: Writer, environ: Mapping[str, str] | None = None
) -> Traces | None:
    """Make what traces for the daemon; None where nothing is traced.

    Args:
        writer: all spans say that they are from this daemon.
        environ: the environment; default: this process's.

    Raises:
        ConfigError: ``tracing.endpoint`` is set, and the extra is not installed; or a variable has
            a value that it cannot have here.
    """
    if (traces := _of_process()) is not None:
        log.info("traces go where the process sends them already")
        return traces
    choice = tracing_choice(settings, environ)
    if choice is None:
        return None
    check_tracing(settings, environ)
    if not _installed(choice):
        log.warning("nothing is traced", error=f"{choice.asked_by} {NEEDS}", runbook="spans-lost")
        return None
    traces = _made(choice, writer)
    log.info("traces are sent", receiver=choice.receiver, asked_by=choice.asked_by)
    return traces


def _of_process() -> Traces | None:
    """The traces by a provider that the process has set; nobody can have without importing it."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry import trace

    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    from ingester.observability.tracing.calls import Traces
    from ingester.observability.tracing.tracer import Sampling, Tracer

    # Its own sampler decides, for callers' spans as well.
    return Traces(Tracer(provider.get_tracer("ingester"), Sampling(None, 1 << 62)))


def _made(choice: TracingChoice, writer: Writer) -> Traces:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON

    from ingester.observability.tracing.calls import Traces
    from ingester.observability.tracing.delivery import SpanQueue
    from ingester.observability.tracing.tracer import Sampling, Tracer

    queue = SpanQueue(_exporter(choice), choice.queue_spans, choice.receiver)
    # What is not wanted is not begun: the sampler has nothing to decide, unless it is another one.
    sampler = None if choice.sample is None else ALWAYS_ON
    provider = TracerProvider(sampler=sampler, resource=_resource(writer), shutdown_on_exit=False)
    provider.add_span_processor(queue)
    sampling = Sampling(choice.sample, choice.max_asked_per_s)
    tracer = provider.get_tracer("ingester")
    return Traces(Tracer(tracer, sampling, queue.counts, provider.shutdown))


def _exporter(choice: TracingChoice) -> SpanExporter:
    """The exporter; where it has no endpoint here, it reads its variables itself."""
    if choice.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as over_grpc

        return over_grpc.OTLPSpanExporter(endpoint=choice.endpoint)
    from opentelemetry.exporter.otlp.proto.http import trace_exporter as over_http

    endpoint = choice.endpoint
    if endpoint is not None and not urlsplit(endpoint).path.strip("/"):
        endpoint = endpoint.rstrip("/") + "/v1/traces"
    return over_http.OTLPSpanExporter(endpoint=endpoint)


def _resource(writer: Writer) -> Resource:
    """What all spans say of their daemon; ``OTEL_RESOURCE_ATTRIBUTES`` and the like win."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    facts: dict[str, str | int] = {
        "service.name": "ingester",
        "service.version": __version__,
        "service.instance.id": writer.ingester_id,
        "ingester.incarnation": writer.incarnation,
        "ingester.epoch": writer.epoch,
    }
    own = Resource.create(facts)
    return own.merge(OTELResourceDetector().detect())
