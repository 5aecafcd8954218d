"""One trace covers client, log, buffer, files and queries, as received over OTLP."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from ingester.errors import ClientGone
from ingester.observability.tracing.calls import Traces
from ingester.observability.tracing.tracer import Tracer
from ingester.server.flight.refusals import TRAILER
from tests.drivers.daemon import Daemon
from tests.drivers.receiver import ReceivedSpan, Receiver, otlp_receiver
from tests.drivers.wire import numbers, path, persist, ticket

BATCH = numbers(0, 3)
SAMPLED, UNSAMPLED = "01", "00"


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with otlp_receiver() as running:
        yield running


@pytest.fixture(scope="module")
def daemon(receiver: Receiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that traces a call only when its client asks for it."""
    said = {"OTEL_BSP_SCHEDULE_DELAY": "100", "OTEL_RESOURCE_ATTRIBUTES": "deployment=tests"}
    with Daemon.start(
        tmp_path_factory.mktemp("traced") / "data",
        environment=said,
        tracing__endpoint=receiver.endpoint,
        tracing__sample="0",
        memory__limit="1GiB",
    ) as running:
        yield running


def _parent(number: int, flags: str = SAMPLED) -> tuple[str, str]:
    """A ``traceparent``, and its trace id."""
    trace_id = format(number, "032x")
    return f"00-{trace_id}-{number:016x}-{flags}", trace_id


def _options(traceparent: str) -> fl.FlightCallOptions:
    return fl.FlightCallOptions(headers=[(b"traceparent", traceparent.encode())])


def _put(client: fl.FlightClient, table: tuple[str, str], traceparent: str) -> None:
    writer, reader = client.do_put(path(table), BATCH.schema, _options(traceparent))
    with writer:
        writer.write_batch(BATCH)
        assert json.loads(reader.read().to_pybytes())["traces"]
        writer.done_writing()
        assert reader.read() is None


def _in(spans: list[ReceivedSpan], trace_id: str) -> dict[str, ReceivedSpan]:
    return {span.name: span for span in spans if span.trace_id == trace_id}


def test_a_batch_of_a_foreign_client_is_followed_into_its_file(
    daemon: Daemon, receiver: Receiver
) -> None:
    table = ("traced", "foreign")
    with fl.connect(daemon.flight) as client:
        unsampled, unasked = _parent(0xA1, UNSAMPLED)
        _put(client, table, unsampled)
        traceparent, trace_id = _parent(0xA2)
        _put(client, table, traceparent)
        persist(client, table)
    spans = receiver.wait(lambda came: "persist" in _in(came, trace_id))
    mine = _in(spans, trace_id)
    write = mine["write traced.foreign"]
    assert write.parent_id == format(0xA2, "016x")
    assert write.attributes["db.collection.name"] == "foreign"
    assert write.attributes["ingester.rows"] == BATCH.num_rows
    assert write.attributes["ingester.sequence"] > 0
    assert write.resource["service.instance.id"] == daemon.ready["ingester_id"]
    assert write.resource["deployment"] == "tests"
    steps = [mine[name] for name in ("prepare", "log", "apply", "persist")]
    assert {step.parent_id for step in steps} == {write.span_id}
    assert write.began_ns == steps[0].began_ns
    # Each step begins when the previous one ends; the answer is sent once the log has the batch.
    assert steps[0].ended_ns == steps[1].began_ns and steps[1].ended_ns == steps[2].began_ns
    assert write.ended_ns == steps[1].ended_ns < steps[3].began_ns
    # Work shared by many batches has its own trace, linked both ways.
    (commit,) = [span for span in spans if span.span_id in mine["log"].links]
    assert commit.name == "group commit" and write.span_id in commit.links
    (flush,) = [span for span in spans if span.span_id in mine["persist"].links]
    assert flush.name == "flush traced.foreign" and flush.links == [write.span_id]
    assert flush.attributes["ingester.freeze_reason"] == "asked"
    assert flush.attributes["ingester.rows"] == 2 * BATCH.num_rows
    below = [span for span in spans if span.parent_id == flush.span_id]
    assert [span.name for span in below] == ["queue", "order and put", "linger", "commit"]
    assert not any(span.trace_id == unasked for span in spans), "its caller did not want it"


def test_the_client_library_makes_one_trace_of_writes_and_queries(
    daemon: Daemon, receiver: Receiver
) -> None:
    program = [sys.executable, "-m", "tests.observability.tracing.traced_program"]
    ran = subprocess.run(
        [*program, daemon.flight, receiver.endpoint], check=True, capture_output=True, text=True
    )
    trace_id = ran.stdout.strip()

    def of(came: list[ReceivedSpan], service: str) -> list[ReceivedSpan]:
        mine = [span for span in came if span.name.endswith("traced.library")]
        return [s for s in mine if s.resource["service.name"] == service and s.parent_id]

    spans = receiver.wait(lambda came: len(of(came, "ingester")) >= 6)
    (work,) = [span for span in spans if span.name == "work"]
    ours, theirs = of(spans, "a program"), of(spans, "ingester")
    assert sorted(span.name.split()[0] for span in ours) == ["query"] * 3 + ["write"] * 3
    assert {span.parent_id for span in ours} == {work.span_id}
    # Each client span has one daemon span as its child, in the same trace.
    assert sorted(span.parent_id for span in theirs) == sorted(span.span_id for span in ours)
    assert {span.trace_id for span in [*ours, *theirs]} == {work.trace_id} == {trace_id}
    for mine in ours:
        (their,) = [span for span in theirs if span.parent_id == mine.span_id]
        assert mine.began_ns <= their.began_ns and their.failed == mine.failed
        assert mine.attributes.get("error.type") == their.attributes.get("error.type")
    (failed,) = [span for span in theirs if span.failed]
    assert failed.attributes["error.type"] == "invalid" and "nowhere" in failed.message
    for query in theirs:
        if query.name.startswith("query") and not query.failed:
            below = [span.name for span in spans if span.parent_id == query.span_id]
            assert below[:2] == ["parse", "snapshot"] and {"scan", "send"} <= set(below)
            assert query.attributes["db.response.returned_rows"] == 9


def test_a_long_stream_leaves_the_trace_of_its_call(daemon: Daemon, receiver: Receiver) -> None:
    table = ("traced", "long")
    traceparent, trace_id = _parent(0xB1)
    own_parent, own_trace = _parent(0xB2)
    with fl.connect(daemon.flight) as client:
        writer, reader = client.do_put(path(table), BATCH.schema, _options(traceparent))
        for number in range(41):
            said = {"traceparent": own_parent} if number == 40 else {}
            writer.write_with_metadata(BATCH, json.dumps(said).encode())
            assert json.loads(reader.read().to_pybytes())["accepted"]
        writer.write_batch(BATCH.slice(0, 0))
        writer.close()
    spans = receiver.wait(lambda came: "apply" in _in(came, own_trace))
    of_call = [s for s in spans if s.trace_id == trace_id and s.name == "write traced.long"]
    # A stream may stay open for days, so later batches are sampled, here with probability 0.
    assert len(of_call) == 32
    (of_batch,) = [s for s in spans if s.trace_id == own_trace and s.name == "write traced.long"]
    assert of_batch.parent_id == format(0xB2, "016x")


@pytest.mark.parametrize(
    "header",
    ["", "x", "00-" + "0" * 32 + "-" + "1" * 16 + "-01", "ff-" + "1" * 32 + "-" + "1" * 16 + "-01"],
)
def test_a_header_that_is_no_traceparent_harms_nobody(daemon: Daemon, header: str) -> None:
    table = ("traced", "junk")
    with fl.connect(daemon.flight) as client:
        _put(client, table, header)
        (answer,) = client.do_get(ticket(table), _options(header)).to_reader()
        assert answer.num_rows % BATCH.num_rows == 0


def test_actions_are_traced_and_their_names_are_ours(daemon: Daemon, receiver: Receiver) -> None:
    traceparent, trace_id = _parent(0xC1)
    with fl.connect(daemon.flight) as client:
        list(client.do_action(fl.Action("origins", b"{}"), _options(traceparent)))
        with pytest.raises(pa.ArrowNotImplementedError):
            list(client.do_action(fl.Action("no-such-" * 9, b""), _options(traceparent)))
    mine = _in(receiver.wait(lambda came: len(_in(came, trace_id)) >= 2), trace_id)
    assert sorted(mine) == ["action origins", "action unknown"]
    assert mine["action unknown"].attributes["error.type"] == "unimplemented"


def test_an_error_names_the_trace_of_its_call(daemon: Daemon) -> None:
    traceparent, trace_id = _parent(0xD1, UNSAMPLED)
    found: dict[str, list[Any]] = {}

    class Trailers(fl.ClientMiddleware):  # type: ignore[misc]
        def received_headers(self, headers: dict[str, list[Any]]) -> None:
            found.update(headers)

    class Factory(fl.ClientMiddlewareFactory):  # type: ignore[misc]
        def start_call(self, info: Any) -> Trailers:
            return Trailers()

    with fl.FlightClient(daemon.flight, middleware=[Factory()]) as client:
        _put(client, ("traced", "errors"), traceparent)
        with pytest.raises(pa.ArrowInvalid):
            client.do_get(ticket(("traced", "errors"), columns=["x"]), _options(traceparent))
    assert json.loads(found[TRAILER][0])["trace_id"] == trace_id


def test_no_part_of_it_is_imported_where_nothing_is_traced() -> None:
    code = (
        "import sys, ingester.daemon.process, ingester.client;"
        "from ingester.config.settings import TracingSettings;"
        "from ingester.observability.tracing.collector import open_traces;"
        "from persist.manifest import WriterIdentity;"
        "assert open_traces(TracingSettings(), WriterIdentity('a', 'b', 1), {}) is None;"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_refused_batch_ends_its_span_and_none_is_left_open(
    daemon: Daemon, receiver: Receiver
) -> None:
    traceparent, trace_id = _parent(0xE1)
    good = numbers(0, 1, s=pa.array(["x"]))
    no_utf8 = [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")]
    bad = numbers(1, 1, s=pa.Array.from_buffers(pa.string(), 1, no_utf8))
    with fl.connect(daemon.flight) as client:
        options = _options(traceparent)
        writer, reader = client.do_put(path(("traced", "refused")), good.schema, options)
        writer.write_batch(good)
        assert json.loads(reader.read().to_pybytes())["accepted"]
        writer.write_batch(bad)
        with pytest.raises(pa.ArrowInvalid, match="not valid"):
            writer.close()

    def writes(came: list[ReceivedSpan]) -> list[ReceivedSpan]:
        return [s for s in came if s.trace_id == trace_id and s.name.startswith("write")]

    spans = receiver.wait(lambda came: len(writes(came)) == 2)
    assert [write.attributes.get("error.type") for write in writes(spans)] == [None, "invalid"]
    mine = [span for span in spans if span.trace_id == trace_id]
    ids = {span.span_id for span in mine} | {format(0xE1, "016x")}
    assert {span.parent_id for span in mine} <= ids, "each step has what it is a step of"
    assert all(span.began_ns <= span.ended_ns for span in mine)
    told = daemon.stderr_file.read_text()
    assert "ended span" not in told and "spans-lost" not in told


class _Part(NamedTuple):
    batch: pa.RecordBatch = BATCH
    partition: str = ""
    source: str = "buffer"


@pytest.mark.parametrize("ends", ["gone", "dropped", "refused", "failed"])
def test_a_query_whose_client_has_gone_is_cancelled_and_has_not_failed(ends: str) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = Tracer(provider.get_tracer("test"))
    query = Traces(tracer).call((), ()).query("n", "t", "all", time.time_ns())
    assert query is not None
    error: Exception = ValueError("a bad file") if ends == "failed" else ClientGone("it left")

    def parts() -> Iterator[_Part]:
        yield _Part()
        raise error

    if ends == "refused":
        query.refused(error)
    elif ends == "dropped":
        sent = query.watched(parts())
        next(sent)
        del sent  # gRPC does the same with an iterator that it no longer needs
    else:
        with pytest.raises(type(error)):
            list(query.watched(parts()))
    (span,) = [each for each in exporter.get_finished_spans() if each.name == "query n.t"]
    assert span.attributes is not None
    is_cancelled, failed = span.attributes.get("ingester.cancelled"), span.status.status_code
    if ends == "failed":
        assert (is_cancelled, failed) == (None, StatusCode.ERROR)
    else:
        assert (is_cancelled, failed) == (True, StatusCode.UNSET)
        assert "error.type" not in span.attributes
