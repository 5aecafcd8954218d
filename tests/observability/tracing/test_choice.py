"""Which calls are traced, and where to: ``[tracing]``, after OpenTelemetry's variables."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Sampler
from opentelemetry.trace import SpanContext, TraceFlags
from structlog.testing import capture_logs

from ingester.config.otel_variables import tracing_choice
from ingester.config.settings import ConfigError, TracingSettings
from ingester.config.sources import load
from ingester.observability.tracing.collector import check_tracing, open_traces
from ingester.observability.tracing.provider import make_provider, make_sampler
from ingester.observability.tracing.tracer import Tracer, remote_span
from persist.manifest import WriterIdentity

HERE = TracingSettings(endpoint="http://here:4317", sample=0.25)


def test_nothing_is_traced_unless_somebody_says_where_to() -> None:
    assert tracing_choice(TracingSettings(), {}) is None
    assert tracing_choice(TracingSettings(), {"OTEL_EXPORTER_OTLP_ENDPOINT": " "}) is None
    for off in ({"OTEL_SDK_DISABLED": "True"}, {"OTEL_TRACES_EXPORTER": "none"}):
        assert tracing_choice(HERE, off) is None


def test_the_standard_variables_win() -> None:
    choice = tracing_choice(HERE, {})
    assert choice is not None
    assert choice[:3] == ("http://here:4317", "grpc", 0.25)
    assert (choice.asked_by, choice.by_environment) == ("tracing.endpoint", False)
    said = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://there:4318",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": "0.5",
    }
    choice = tracing_choice(HERE, said)
    assert choice is not None
    # The SDK reads the endpoint itself, including its path and headers.
    assert choice[:3] == (None, "http", 0.5)
    assert choice.asked_by == "OTEL_EXPORTER_OTLP_ENDPOINT"
    other = tracing_choice(HERE, {"OTEL_TRACES_SAMPLER": "always_off"})
    assert other is not None and other.sample is None


def test_a_batch_that_the_environment_makes_larger_than_the_queue_is_as_large_as_the_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "100000")
    choice = tracing_choice(HERE, {})
    assert choice is not None
    make_provider(choice, WriterIdentity("one", "i", 1)).shutdown()


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "OTEL_EXPORTER_OTLP_PROTOCOL"),
        (
            {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "2"},
            "OTEL_TRACES_SAMPLER_ARG",
        ),
    ],
)
def test_a_variable_that_cannot_be_used_is_named(variables: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        tracing_choice(HERE, variables)


def test_a_share_is_a_number_or_a_percentage_and_an_endpoint_a_url() -> None:
    def given(**flags: object) -> TracingSettings:
        return load(
            {f"tracing.{name}": value for name, value in flags.items()}, {}
        ).settings.tracing

    assert [given(sample=s).sample for s in ("1%", "0.5", 1)] == [0.01, 0.5, 1.0]
    for wrong in ("2", "-1", "some"):
        with pytest.raises(ConfigError, match=r"tracing\.sample"):
            given(sample=wrong)
    with pytest.raises(ConfigError, match=r"tracing\.endpoint.*http://"):
        given(endpoint="collector:4317")


def test_what_is_asked_for_here_and_not_installed_is_refused_before_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_tracing(HERE, {})
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc", None)
    with pytest.raises(ConfigError, match=r"tracing\.endpoint.*pip install '\.\[otel\]'"):
        check_tracing(HERE, {})
    # The variable may be meant for other programs.
    there = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://there:4317"}
    check_tracing(HERE, there)
    with capture_logs() as lines:
        assert open_traces(HERE, WriterIdentity("a", "b", 1), there) is None
    assert [line["event"] for line in lines] == ["nothing is traced"]
    assert "OTEL_EXPORTER_OTLP_ENDPOINT needs the extra otel" in lines[0]["error"]


def _caller(flags: int) -> SpanContext:
    return SpanContext(1, 1, is_remote=True, trace_flags=TraceFlags(flags))


def _traced(sampler: Sampler) -> Callable[..., bool]:
    """A function that tells whether a span with this parent and these links is recorded."""
    tracer = Tracer(TracerProvider(sampler=sampler).get_tracer("test"))
    return lambda parent=None, links=(): (
        tracer.begin("a span", {}, parent=parent, links=links) is not None
    )


def test_callers_decide_for_themselves_up_to_a_bound() -> None:
    traced = _traced(make_sampler(0.0, 5))
    assert not traced() and not traced(_caller(0))
    # The limit of one second, or of two if the test crosses a second.
    assert 5 <= sum(traced(_caller(1)) for _ in range(100)) <= 10
    traced = _traced(make_sampler(1.0, 0))
    assert traced() and traced(_caller(1))
    assert not traced(_caller(0))


def test_work_for_traced_batches_is_traced_and_a_link_of_a_caller_decides_nothing() -> None:
    traced = _traced(make_sampler(0.0, 5))
    batch = SpanContext(1, 1, is_remote=False, trace_flags=TraceFlags(1))
    assert traced(links=(batch,)) and traced(batch)
    assert not traced(links=(_caller(1),))


def test_a_sampler_of_the_environment_has_its_say() -> None:
    tracer = Tracer(TracerProvider(sampler=ALWAYS_OFF).get_tracer("test"))
    assert tracer.begin("never", {}) is None
    assert tracer.past("never", (1, 2), {}, parent=None) is None


@pytest.mark.parametrize(
    "said",
    [
        (),
        ("",),
        ("00-" + "1" * 32 + "-" + "2" * 16 + "-01",) * 2,
        ("00-" + "g" * 32 + "-" + "2" * 16 + "-01",),
        ("00-" + "1" * 32 + "-" + "0" * 16 + "-01",),
        ("00-" + "1" * 32 + "-" + "2" * 16 + "-01-more",),
    ],
)
def test_what_is_no_traceparent_is_none(said: tuple[str, ...]) -> None:
    assert remote_span(said) is None
