"""Whether to trace and where to send spans: ``[tracing]`` and the variables that override it.

    OTEL_SDK_DISABLED, OTEL_TRACES_EXPORTER=none        tracing is off
    OTEL_EXPORTER_OTLP_[TRACES_]ENDPOINT                overrides ``tracing.endpoint``
    OTEL_EXPORTER_OTLP_[TRACES_]PROTOCOL                overrides ``tracing.protocol``
    OTEL_TRACES_SAMPLER, OTEL_TRACES_SAMPLER_ARG        overrides ``tracing.sample``
    any other OTEL_* variable                           is read by the SDK

An empty variable counts as unset.

Source: OpenTelemetry specification, "Environment Variable Specification".
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal, NamedTuple

from .settings import ConfigError, TracingSettings

_OTLP = "OTEL_EXPORTER_OTLP"
_PROTOCOLS: dict[str, Literal["grpc", "http"]] = {"grpc": "grpc", "http/protobuf": "http"}


class TracingChoice(NamedTuple):
    """How to trace."""

    endpoint: str | None
    """The receiver's URL; None if the SDK reads it from :attr:`asked_by`."""
    protocol: Literal["grpc", "http"]
    sample: float | None
    """The share of root spans to sample; None if the environment sets another sampler."""
    max_asked_per_s: int
    queue_spans: int
    receiver: str
    """The receiver's URL, for messages."""
    asked_by: str
    """The setting or variable that turns tracing on."""

    @property
    def by_environment(self) -> bool:
        """Whether a variable turns tracing on; it may be meant for other programs."""
        return self.endpoint is None


def tracing_choice(
    settings: TracingSettings, environ: Mapping[str, str] | None = None
) -> TracingChoice | None:
    """Return how to trace; None if tracing is off.

    Args:
        environ: the environment; default: this process's.

    Raises:
        ConfigError: a variable has an unsupported value.
    """
    there = os.environ if environ is None else environ
    variables = {name: value.strip() for name, value in there.items() if value.strip()}
    off = variables.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if off or variables.get("OTEL_TRACES_EXPORTER", "").lower() == "none":
        return None
    named = _first(variables, f"{_OTLP}_TRACES_ENDPOINT", f"{_OTLP}_ENDPOINT")
    if named is None and not settings.endpoint:
        return None
    return TracingChoice(
        endpoint=settings.endpoint if named is None else None,
        protocol=_protocol(variables, settings),
        sample=_sample(variables, settings),
        max_asked_per_s=settings.max_asked_per_s,
        queue_spans=settings.queue_spans,
        receiver=settings.endpoint if named is None else variables[named],
        asked_by="tracing.endpoint" if named is None else named,
    )


def _first(variables: Mapping[str, str], *names: str) -> str | None:
    return next((name for name in names if name in variables), None)


def _protocol(variables: Mapping[str, str], settings: TracingSettings) -> Literal["grpc", "http"]:
    name = _first(variables, f"{_OTLP}_TRACES_PROTOCOL", f"{_OTLP}_PROTOCOL")
    if name is None:
        return settings.protocol
    if variables[name] not in _PROTOCOLS:
        known = " or ".join(_PROTOCOLS)
        raise ConfigError(name, f"{variables[name]!r} is not supported; use {known}")
    return _PROTOCOLS[variables[name]]


def _sample(variables: Mapping[str, str], settings: TracingSettings) -> float | None:
    """The share, if the sampler is ours or the standard one that equals it."""
    sampler = variables.get("OTEL_TRACES_SAMPLER")
    if sampler is None:
        return settings.sample
    if sampler != "parentbased_traceidratio":
        return None
    text = variables.get("OTEL_TRACES_SAMPLER_ARG", "1")
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ConfigError("OTEL_TRACES_SAMPLER_ARG", f"{text!r} is not a number from 0 to 1")
    return share
