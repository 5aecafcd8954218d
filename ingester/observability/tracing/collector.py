"""Whether the daemon traces, and with which provider; the SDK is imported only if it does.

A provider that the process has already (``opentelemetry-instrument``) is used as it is.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import structlog

from ingester.config.otel_variables import TracingChoice, tracing_choice
from ingester.config.settings import ConfigError, TracingSettings

if TYPE_CHECKING:
    from ingester.observability.tracing.calls import Traces
    from ingester.observability.tracing.provider import SpanWriter

log = structlog.get_logger(__name__)

NEEDS = "needs the extra otel: pip install '.[otel]' in the folder of the sources"


def check_tracing(settings: TracingSettings, environ: Mapping[str, str] | None = None) -> None:
    """Check what :func:`open_traces` would refuse, before the start does anything else.

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
    settings: TracingSettings, writer: SpanWriter, environ: Mapping[str, str] | None = None
) -> Traces | None:
    """Return the daemon's traces; None where nothing is traced.

    Args:
        writer: the daemon that all spans name.
        environ: the environment; default: this process's.

    Raises:
        ConfigError: ``tracing.endpoint`` is set and the extra is not installed, or a variable has
            an unsupported value.
    """
    if (traces := _of_process()) is not None:
        log.info("tracing uses the provider of the process")
        return traces
    choice = tracing_choice(settings, environ)
    if choice is None:
        return None
    check_tracing(settings, environ)
    if not _installed(choice):
        log.warning("nothing is traced", error=f"{choice.asked_by} {NEEDS}", runbook="spans-lost")
        return None
    from ingester.observability.tracing.calls import Traces
    from ingester.observability.tracing.provider import close_provider, make_provider
    from ingester.observability.tracing.tracer import Tracer

    provider = make_provider(choice, writer)
    log.info("traces are sent", receiver=choice.receiver, asked_by=choice.asked_by)
    return Traces(
        Tracer(provider.get_tracer("ingester")), lambda within_s: close_provider(provider, within_s)
    )


def _of_process() -> Traces | None:
    """The traces of a provider that the process has set; without the import it has set none."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry import trace

    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    from ingester.observability.tracing.calls import Traces
    from ingester.observability.tracing.tracer import Tracer

    return Traces(Tracer(provider.get_tracer("ingester")))
