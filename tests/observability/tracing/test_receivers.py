"""An unreachable or slow span receiver delays no writer, and the log reports lost spans."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pyarrow.flight as fl

from tests.drivers.daemon import Daemon
from tests.drivers.receiver import otlp_receiver
from tests.drivers.waiting import until
from tests.drivers.wire import numbers, path

BATCH = numbers(0, 1)


def _lost(daemon: Daemon) -> list[str]:
    """The log lines about lost spans."""
    lines = daemon.stderr_file.read_text().splitlines()
    return [line for line in lines if '"runbook": "spans-lost"' in line]


def test_writers_do_not_wait_for_a_receiver_that_hangs_or_is_unreachable(tmp_path: Path) -> None:
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
            # The variables take precedence: nothing listens at this address.
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
                # The receiver never answers; the exporter gives up after a second.
                assert slowest < 1.0
                until(lambda: any("Queue full" in line for line in _lost(daemon)), "dropped spans")
                until(lambda: any("Failed to export" in line for line in _lost(daemon)), "failure")
                receiver.gate.set()
                list(client.do_action(fl.Action("origins", b"{}")))
                receiver.named("action origins")
            told = daemon.stderr_file.read_text()
            receiver.gate.clear()
            began = time.monotonic()
            assert daemon.terminate() == 0
            # A stop waits two seconds for the last spans, without the SDK's retries.
            assert time.monotonic() - began < 15
    assert "library-warning" not in told and "Transient error" not in told


def test_an_unreachable_receiver_over_http_is_in_the_log_and_does_not_hold_up_the_stop(
    tmp_path: Path,
) -> None:
    # Spans are sent in batches of four; the stop sends the rest.
    variables = {"OTEL_BSP_SCHEDULE_DELAY": "3600000", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "4"}
    with Daemon.start(
        tmp_path / "data",
        environment={**variables, "OTEL_EXPORTER_OTLP_TIMEOUT": "1"},
        tracing__endpoint="http://127.0.0.1:9",
        tracing__protocol="http",
        tracing__sample="100%",
    ) as daemon:
        with fl.connect(daemon.flight) as client:
            for _ in range(4):
                list(client.do_action(fl.Action("origins", b"{}")))
            until(lambda: bool(_lost(daemon)), "the spans are given up")
        began = time.monotonic()
        assert daemon.terminate() == 0
        assert time.monotonic() - began < 15
