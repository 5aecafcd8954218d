"""The examples of ``docs/protocol.md``, sent to a real daemon with plain pyarrow.

Each heading has the JSON that is sent, the answer, or both in this order. An answer must have
the same fields with values of the same types, and equal values where these are deterministic.
"""

from __future__ import annotations

import base64
import datetime
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from ingester.errors import MemoryFull
from ingester.server.flight.actions import ACTIONS
from ingester.server.flight.refusals import flight_error
from tests.drivers.daemon import Daemon
from tests.fuzz.raw_flight import call, flight_data, ipc_stream, path_descriptor

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "protocol.md").read_text()
EXAMPLES: dict[str, list[Any]] = {
    section.split("\n", 1)[0]: [
        json.loads(body) for body in re.findall(r"^```json\n(.*?)^```$", section, re.M | re.S)
    ]
    for section in re.split(r"^### ", PAGE, flags=re.M)[1:]
}
# Values that differ between daemons or over time.
VOLATILE = re.compile(
    r"incarnation|pid|version|flight|http|store|ingester_id|.*_at|at|since|.*bytes|.*_s|sequence|"
    r"until|query_id|parts|elapsed_ms|.*_files|snapshot_sequence|position|manifest_version|segments|syncs|state|operations_.*"
)


def unlike(shown: Any, real: Any, where: str = "") -> list[str]:
    """The differences between an answer and the page's example."""
    if isinstance(shown, dict) and isinstance(real, dict):
        wrong = [f"{where}: fields {sorted(shown)}, really {sorted(real)}"] * (
            set(shown) != set(real)
        )
        for name in shown.keys() & real.keys():
            if not (VOLATILE.fullmatch(name) and type(shown[name]) is type(real[name])):
                wrong += unlike(shown[name], real[name], f"{where}.{name}")
        return wrong
    if isinstance(shown, list) and isinstance(real, list) and len(shown) == len(real):
        pairs = enumerate(zip(shown, real, strict=True))
        return [line for at, pair in pairs for line in unlike(*pair, f"{where}[{at}]")]
    numbers = isinstance(shown, int | float) and isinstance(real, int | float)
    # Memory by kind, and rates, vary.
    if numbers and (".by_kind." in where or ".rates." in where):
        return []
    return [] if shown == real else [f"{where}: {shown!r}, really {real!r}"]


def one(heading: str) -> Any:
    (example,) = EXAMPLES[heading]
    return example


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon.start(tmp_path_factory.mktemp("protocol") / "d") as started:
        yield started


@pytest.fixture(scope="module")
def client(daemon: Daemon) -> fl.FlightClient:
    return fl.connect(daemon.flight)


def act(client: fl.FlightClient, name: str, body: Any) -> list[Any]:
    results = client.do_action(fl.Action(name, json.dumps(body).encode()))
    return [json.loads(result.body.to_pybytes()) for result in results]


def get(client: fl.FlightClient, ticket: Any) -> fl.FlightStreamReader:
    return client.do_get(fl.Ticket(json.dumps(ticket).encode()))


def fetch(daemon: Daemon, path: str) -> Any:
    try:
        with urllib.request.urlopen(daemon.http + path) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return json.load(error)


def rows() -> pa.RecordBatch:
    nine = datetime.datetime(2026, 11, 21, 9, tzinfo=datetime.UTC)
    times = [nine, nine + datetime.timedelta(days=1)]
    return pa.record_batch(
        {"time": pa.array(times, pa.timestamp("us", "UTC")), "host": ["h1", "h2"], "v": [1.5, 4.0]}
    )


# One test from create to status: the page tells one story, with consistent numbers.
def test_the_story_of_the_page_is_what_a_daemon_says(
    daemon: Daemon, client: fl.FlightClient
) -> None:
    sent, shown = EXAMPLES["create_table"]
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(sent["schema"])))
    assert schema == rows().schema
    for _ in range(2):
        assert unlike([shown], act(client, "create_table", sent)) == []

    command = json.dumps(one("A write's command")).encode()
    for heading in ("The answer to a batch", "The answer to a duplicate"):
        writer, reader = client.do_put(fl.FlightDescriptor.for_command(command), rows().schema)
        writer.write_with_metadata(rows(), json.dumps(one("A batch's app_metadata")).encode())
        assert unlike(one(heading), json.loads(reader.read().to_pybytes())) == []
        writer.done_writing()
        assert reader.read() is None
        writer.close()

    sent, shown = EXAMPLES["describe_table"]
    assert unlike([shown], act(client, "describe_table", sent)) == []

    answer = get(client, one("A ticket"))
    metadata = {key.decode(): value.decode() for key, value in answer.schema.metadata.items()}
    assert unlike(one("The metadata of an answer's schema"), metadata) == []
    (chunk,) = list(answer)
    assert chunk.data.to_pylist() == [{"host": "h1", "v": 1.5}]
    assert json.loads(chunk.app_metadata.to_pybytes()) == one(
        "The app_metadata of an answer's batch"
    )
    assert get(client, one("A ticket for a version")).read_all().num_rows == 0
    assert get(client, one("A ticket for the buffered tail")).read_all().num_rows == 2

    sent = one("A ticket for the live feed")
    sent["after"]["ingester_id"] = daemon.ready["ingester_id"]
    answer = get(client, sent)
    metadata = {key.decode(): value.decode() for key, value in answer.schema.metadata.items()}
    shown = one("The metadata of a live answer's schema")
    assert unlike(shown, metadata) == []
    assert json.loads(metadata["position"]).keys() == json.loads(shown["position"]).keys()
    first, second = [json.loads(chunk.app_metadata.to_pybytes()) for chunk in answer]
    assert first == one("The app_metadata of a live answer's batch")
    assert second["partition"] != first["partition"]

    info = client.get_flight_info(fl.FlightDescriptor.for_path("shop", "visits"))
    (endpoint,) = info.endpoints
    assert json.loads(endpoint.ticket.ticket) == one("The ticket of an endpoint")
    assert endpoint.locations == []
    assert info.total_records == 2

    assert unlike(one("GET /api/status"), fetch(daemon, "/api/status")) == []
    for heading in ("GET /api/tables/shop/visits", "GET /api/tables/shop/visits/partitions"):
        real = fetch(daemon, heading.removeprefix("GET "))
        assert unlike(one(heading), real) == []
    for name in (
        "status_list",
        "persist",
        "origins",
        "checkpoint_get",
        "checkpoint_put",
    ):
        bodies = EXAMPLES[name]
        for sent, shown in zip(bodies[::2], bodies[1::2], strict=True):
            assert unlike([shown], act(client, name, sent)) == []
    sent, shown = EXAMPLES["checkpoints"]
    *_, last = act(client, "checkpoints", sent)
    assert unlike(shown, last) == []
    sent, shown = EXAMPLES["checkpoint_delete"]
    assert unlike([shown], act(client, "checkpoint_delete", sent)) == []
    assert act(client, "origins", {"origin": "nobody"}) == []
    sent, shown = EXAMPLES["followers_prepare"]
    assert act(client, "followers_prepare", sent) == [shown]
    told = get(client, one("A ticket of a follower that prepares versions")).schema.metadata
    assert json.loads(told[b"coming"]) == one("The field coming of a live answer's metadata")
    sent, shown = EXAMPLES["followers"]
    assert act(client, "followers", sent) == [shown]
    sent, shown = EXAMPLES["replication_report"]
    assert act(client, "replication_report", sent) == [shown]
    asked, (sent, shown) = EXAMPLES["store"], EXAMPLES["replication_report"]
    assert unlike([asked[1]], act(client, "store", asked[0])) == []
    (by_action,) = act(client, "status", one("status"))
    (told,) = by_action["replications"]
    assert (told["origin"], told["alive"], told["rivals"]) == (sent["origin"], True, 0)
    assert by_action.keys() == one("GET /api/status").keys()
    sent = one("A ticket with SQL")
    sink = pa.BufferOutputStream()
    row = pa.record_batch({"least": [1.0]})
    with pa.ipc.new_stream(sink, row.schema) as writer:
        writer.write_batch(row)
    sent["parameters"] = base64.b64encode(sink.getvalue().to_pybytes()).decode()
    answer = get(client, sent)
    metadata = {key.decode(): value.decode() for key, value in answer.schema.metadata.items()}
    assert unlike(one("The metadata of an SQL answer's schema"), metadata) == []
    assert answer.read_all().to_pylist() == [{"host": "h2", "more": 5.0}]
    request = urllib.request.Request(
        daemon.http + "/api/sql",
        b'{"sql": "SELECT count(*) AS n FROM shop.visits"}',
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answered:
        assert unlike(one("POST /api/sql"), json.load(answered)) == []
    sent, shown = EXAMPLES["drain"]
    assert unlike([shown], act(client, "drain", sent)) == []
    assert act(client, "drain", {"undo": True})[0]["state"] == "none"


def test_the_log_level_of_the_page_is_set_and_taken_back(client: fl.FlightClient) -> None:
    sent, shown = EXAMPLES["log_level"]
    assert unlike([shown], act(client, "log_level", sent)) == []
    assert act(client, "log_level", {"level": "default"}) == [{"level": "info", "set": []}]


def test_a_follower_that_is_too_far_behind_hears_what_to_do(tmp_path: Path) -> None:
    # Without retention for followers, a flushed row is too old for them at once.
    with Daemon.start(tmp_path / "d", query__tail_retain=0) as daemon:
        client = fl.connect(daemon.flight)
        act(client, "create_table", EXAMPLES["create_table"][0])
        for _ in range(2):
            writer, reader = client.do_put(
                fl.FlightDescriptor.for_path("shop", "visits"), rows().schema
            )
            writer.write_batch(rows())
            reader.read()
            writer.close()
        act(client, "persist", {"namespace": "shop", "table": "visits"})
        sent = one("A ticket for the live feed")
        sent["after"]["ingester_id"] = daemon.ready["ingester_id"]
        with pytest.raises(fl.FlightUnavailableError) as refused:
            get(client, sent)
        shown = one("extra_info of a position that is too old")
        assert json.loads(refused.value.extra_info) == shown


def test_a_checkpoint_of_the_page_shares_bytes(client: fl.FlightClient) -> None:
    sent = one("A checkpoint that shares bytes with others")
    command = json.dumps({"type": "write", "namespace": "shop", "table": "shared", "origin": "o"})
    batch = pa.record_batch({"v": [1]})
    writer, reader = client.do_put(fl.FlightDescriptor.for_command(command), batch.schema)
    writer.write_with_metadata(batch, json.dumps(sent).encode())
    assert json.loads(reader.read().to_pybytes())["accepted"]
    writer.close()
    asked = {"namespace": "shop", "table": "shared", "partition": "topic-0"}
    (found,) = act(client, "checkpoint_get", asked)
    assert {name: found[name] for name in ("state", "shared")} == {
        name: sent["checkpoint"][name] for name in ("state", "shared")
    }


def test_a_delete_takes_the_keys_out(client: fl.FlightClient) -> None:
    sent = one("A delete's command")
    schema = pa.schema({"cart": pa.int64(), "v": pa.float64()})
    table = {"namespace": sent["namespace"], "table": sent["table"]}
    encoded = base64.b64encode(schema.serialize().to_pybytes()).decode()
    act(client, "create_table", table | {"schema": encoded, "primary_key": ["cart"]})
    for command, columns in (
        (sent | {"type": "write"}, {"cart": pa.array([1, 2]), "v": pa.array([0.5, 1.5])}),
        (sent, {"cart": pa.array([2, 3])}),
    ):
        batch = pa.record_batch(columns)
        descriptor = fl.FlightDescriptor.for_command(json.dumps(command).encode())
        writer, reader = client.do_put(descriptor, batch.schema)
        writer.write_batch(batch)
        assert json.loads(reader.read().to_pybytes())["accepted"]
        writer.close()
    assert get(client, table).read_all().to_pylist() == [{"cart": 1, "v": 0.5}]
    tail = get(client, table | {"scope": "buffered"}).read_all()
    marks = dict(zip(tail["cart"].to_pylist(), tail["_op"].to_pylist(), strict=True))
    assert marks == {1: "upsert", 2: "delete", 3: "delete"}


def test_a_replication_message_of_the_page_is_taken(client: fl.FlightClient) -> None:
    command = json.dumps(one("A replication message's command")).encode()
    arrays = [pa.array([None], pa.string()), pa.array(["s1"]), pa.array([3]), pa.array([True])]
    batch = pa.record_batch(arrays, names=["a", "b", "c", "d"])
    writer, reader = client.do_put(fl.FlightDescriptor.for_command(command), batch.schema)
    with writer:
        writer.write_batch(batch)
        writer.done_writing()
        said = json.loads(reader.read().to_pybytes())
    taken = {"accepted": True, "memory_sequence": 17, "first": True}
    assert taken.items() <= said.items()
    # A refusal has all of these fields, and the reason.
    later = one("The answer to a replication message that is not taken now")
    assert later.keys() - said.keys() == {"code", "message", "retry_after_s"}
    found = get(client, {"namespace": "shop", "table": "stock"}).read_all().to_pylist()
    assert found == [{"sku": "s1", "left": 3}]


def test_a_copy_of_the_page_becomes_the_table(client: fl.FlightClient) -> None:
    command = json.dumps(one("A copy's command")).encode()
    batch = pa.record_batch({"id": [1, 2], "v": ["a", "b"]})
    writer, reader = client.do_put(fl.FlightDescriptor.for_command(command), batch.schema)
    with writer:
        writer.write_batch(batch)
        writer.done_writing()
        assert json.loads(reader.read().to_pybytes()) == one("The answer to a copy's batch")
    sent, shown = EXAMPLES["copy_finish"]
    for _ in range(2):
        assert act(client, "copy_finish", sent) == [shown]
    found = get(client, {"namespace": "shop", "table": "orders"}).read_all().to_pylist()
    assert found == batch.to_pylist()
    asked = {"namespace": "shop", "table": "orders", "partition": "postgres:db"}
    (state,) = act(client, "checkpoint_get", asked)
    assert (state["state"], state["durable"]) == (sent["checkpoint"]["state"], True)
    assert act(client, "copy_abort", one("copy_abort")) == [{}]


def test_every_action_is_on_the_page() -> None:
    assert {
        name for name in ACTIONS if f"### {name}\n" not in PAGE and f"`{name}`" not in PAGE
    } == (set())


def test_a_refusal_carries_the_json_shown_in_its_trailer(daemon: Daemon) -> None:
    refused = None
    for batch in (pa.record_batch({"v": [1.5]}), pa.record_batch({"v": ["much"]})):
        (schema, _), data = ipc_stream(batch)
        first = flight_data(schema, b"", path_descriptor("shop", "clashes"))
        refused = call(daemon.flight, "DoPut", [first, flight_data(*data)])
    assert refused is not None
    assert json.loads(refused.binary("ingester-error-bin")) == one("ingester-error-bin")


def test_extra_info_of_a_refusal_has_the_fields_shown() -> None:
    refused = flight_error(MemoryFull("memory is over the high watermark", retry_after_s=1.5))
    assert isinstance(refused, fl.FlightUnavailableError)
    assert json.loads(refused.extra_info) == one("extra_info")


@pytest.mark.parametrize("heading", [name for name in EXAMPLES if name.startswith("GET /")])
def test_http_answers_as_the_page_shows(daemon: Daemon, heading: str) -> None:
    if heading.startswith("GET /api/") and heading != "GET /api/history":
        return
    real, shown = fetch(daemon, heading.removeprefix("GET ")), one(heading)
    if heading == "GET /api/history":
        # There may be samples by now: check that the series have equal lengths, then empty them.
        assert {len(figures) for figures in real["series"].values()} == {len(real["at"])}
        real = real | {"at": [], "series": {name: [] for name in real["series"]}}
    if "/health/ready" in heading:
        # An earlier test may have raised an alarm.
        real = real | {"alarms": [] if isinstance(real["alarms"], list) else real["alarms"]}
    assert real == shown


def test_a_field_too_many_or_of_another_kind_is_noticed() -> None:
    assert unlike({"a": 1}, {"a": 1, "b": 2}) != []
    assert unlike({"a": [{"b": 1}]}, {"a": [{"b": 2}]}) == [".a[0].b: 1, really 2"]
    assert unlike({"bytes": 1}, {"bytes": "1"}) != []
    assert unlike({"bytes": 1, "pid": 7}, {"bytes": 2, "pid": 8}) == []
