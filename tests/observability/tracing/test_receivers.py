"""A receiver that is away, slow or back: nobody waits for it, and each span is counted once."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pyarrow.flight as fl
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from structlog.testing import capture_logs

from ingester.observability.tracing.counts import SpanCounts
from ingester.observability.tracing.delivery import SpanQueue
from tests.drivers.daemon import Daemon
from tests.drivers.receiver import otlp_receiver
from tests.drivers.waiting import until
from tests.drivers.wire import numbers, path

BATCH = numbers(0, 1)


class Held(SpanExporter):
    """An exporter that waits for its gate, then does as it is told."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.result: SpanExportResult | Exception = SpanExportResult.SUCCESS
        self.taken: list[str] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.gate.wait()
        if isinstance(self.result, Exception):
            raise self.result
        self.taken += [span.name for span in spans]
        return self.result


def test_spans_beyond_the_queue_are_dropped_and_every_one_is_counted() -> None:
    exporter = Held()
    queue = SpanQueue(exporter, 100)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(queue)
    tracer = provider.get_tracer("test")
    with capture_logs() as lines:
        for number in range(250):
            tracer.start_span(str(number)).end()
        assert queue.counts() == SpanCounts(dropped=150, waiting=100)
        exporter.gate.set()
        provider.force_flush()
        # The oldest are kept: what comes later finds no room.
        assert sorted(map(int, exporter.taken)) == list(range(100))
        assert queue.counts() == SpanCounts(sent=100, dropped=150)
        for result in (SpanExportResult.FAILURE, RuntimeError("no route"), exporter.result):
            exporter.result = result
            tracer.start_span("one").end()
            provider.force_flush()
        assert queue.counts() == SpanCounts(sent=101, failed=2, dropped=150)
        provider.shutdown()
    # Told once when it goes wrong, however often, and once when it is over.
    told = [(line["log_level"], line["event"]) for line in lines]
    assert told == [
        ("warning", "spans dropped"),
        ("warning", "spans not sent"),
        ("info", "spans are sent again"),
    ]


def _counts(daemon: Daemon) -> dict[str, float]:
    text = urllib.request.urlopen(f"{daemon.http}/metrics").read().decode()
    lines = [line for line in text.splitlines() if line.startswith("ingester_trace_spans")]
    names = (line.partition("{outcome=")[2].partition("}")[0].strip('"') for line in lines)
    return {
        name or "waiting": float(line.split()[-1]) for name, line in zip(names, lines, strict=True)
    }


def test_writers_do_not_wait_for_a_receiver_that_hangs_or_is_away(tmp_path: Path) -> None:
    with otlp_receiver() as receiver:
        receiver.gate.clear()
        with Daemon.start(
            tmp_path / "data",
            environment={
                "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
                "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
                "OTEL_TRACES_SAMPLER_ARG": "1",
                "OTEL_BSP_SCHEDULE_DELAY": "50",
                "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
            },
            # The variables win: nobody is there.
            tracing__endpoint="http://127.0.0.1:9",
            tracing__sample="0",
            tracing__queue_spans="64",
        ) as daemon:
            with fl.connect(daemon.flight) as client:
                writer, reader = client.do_put(path(("ns", "t")), BATCH.schema)
                slowest = 0.0
                for _ in range(100):
                    began = time.monotonic()
                    writer.write_batch(BATCH)
                    assert json.loads(reader.read().to_pybytes())["accepted"]
                    slowest = max(slowest, time.monotonic() - began)
                writer.close()
                # The receiver answers nothing at all, and would be given up after a second.
                assert slowest < 1.0
                until(lambda: _counts(daemon)["dropped"] > 0, "spans are dropped")
                until(lambda: _counts(daemon)["failed"] > 0, "spans are given up")
                assert _counts(daemon)["waiting"] <= 64 and _counts(daemon)["sent"] == 0
                receiver.gate.set()
                until(lambda: _counts(daemon)["waiting"] == 0, "what waits is sent")
                list(client.do_action(fl.Action("origins", b"{}")))
                receiver.named("action origins")
            until(lambda: '"spans are sent again"' in daemon.stderr_file.read_text(), "it is told")
            told = daemon.stderr_file.read_text()
            receiver.gate.clear()
            began = time.monotonic()
            assert daemon.terminate() == 0
            # A stop gives the last spans two seconds, whatever the SDK would like to try.
            assert time.monotonic() - began < 15
    assert told.count('"spans not sent"') == 1 and told.count('"spans are sent again"') == 1
    assert '"runbook": "spans-lost"' in told and "library-warning" not in told


def test_a_receiver_over_http_that_was_never_there_is_told_of(tmp_path: Path) -> None:
    # Four spans are sent at once, and fewer are when the daemon stops.
    said = {"OTEL_BSP_SCHEDULE_DELAY": "3600000", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "4"}
    with Daemon.start(
        tmp_path / "data",
        environment={**said, "OTEL_EXPORTER_OTLP_TIMEOUT": "1"},
        tracing__endpoint="http://127.0.0.1:9",
        tracing__protocol="http",
        tracing__sample="100%",
    ) as daemon:
        with fl.connect(daemon.flight) as client:
            for _ in range(4):
                list(client.do_action(fl.Action("origins", b"{}")))
            until(lambda: _counts(daemon)["failed"] == 4, "the spans are given up")
            for _ in range(3):
                list(client.do_action(fl.Action("origins", b"{}")))
        assert daemon.terminate() == 0
        lines = daemon.stderr_file.read_text().splitlines()
    (lost,) = [line for line in lines if "spans lost at the stop" in line]
    assert json.loads(lost)["spans"] == 3
    (told,) = [line for line in lines if "spans not sent" in line]
    assert json.loads(told)["receiver"] == "http://127.0.0.1:9" and json.loads(told)["error"]
