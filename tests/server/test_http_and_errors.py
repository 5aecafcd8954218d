"""HTTP from outside, and details that no message may reveal."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.drivers.daemon import Daemon
from tests.drivers.ports import free_port
from tests.drivers.s3_server import S3Server
from tests.drivers.waiting import until
from tests.drivers.wire import (
    ARROW_AND_FLIGHT,
    Table,
    act,
    create,
    events,
    http,
    numbers,
    persist,
    put,
    query,
    ticket,
)


def _json(url: str) -> Any:
    status, _, body = http(url)
    assert status == 200
    return json.loads(body)


def _table(daemon: Daemon, table: Table) -> Any:
    """The table's status, from whichever page of the list has it."""
    page = _json(f"{daemon.http}/api/status/tables?limit=1000&after={'/'.join(table)[:-1]}")
    (mine,) = [each for each in page["items"] if (each["namespace"], each["table"]) == table]
    return mine


def test_a_running_daemon_is_live_and_ready(shared: Daemon) -> None:
    assert http(f"{shared.http}/health/live")[0] == 200
    assert http(f"{shared.http}/health/ready")[0] == 200
    assert http(f"{shared.http}/health/ready?for=write")[0] == 200


def test_the_root_is_a_page_for_an_operator(shared: Daemon) -> None:
    status, headers, body = http(f"{shared.http}/")
    assert status == 200
    assert headers["Content-Type" if "Content-Type" in headers else "content-type"].startswith(
        "text/html"
    )
    assert b"<html" in body.lower()


def test_an_unknown_path_is_404(shared: Daemon) -> None:
    assert http(f"{shared.http}/nope")[0] == 404


def _metrics(daemon: Daemon) -> dict[str, float]:
    """Sums over all labels, by metric name."""
    found: dict[str, float] = {}
    text = http(f"{daemon.http}/metrics")[2].decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def test_metrics_are_prometheus_text_and_count_what_happens(
    shared: Daemon, client: fl.FlightClient, table: Table
) -> None:
    before = _metrics(shared)
    put(client, table, events(0, 1234, days=2))
    persist(client, table)
    query(client, table)
    with pytest.raises(pa.ArrowInvalid):
        put(client, table, pa.record_batch({"v": pa.array(["text"])}))
    after = _metrics(shared)
    grown = {name for name in after if after[name] > before.get(name, 0.0)}
    for word in ("rows", "persist", "quer", "refus", "sync"):
        assert any(word in name for name in grown), f"nothing about {word!r} has grown: {grown}"
    assert any(after[name] - before.get(name, 0) == 1234 for name in grown)
    assert all(re.fullmatch(r"(ingester|process|python)_[a-z0-9_]+", name) for name in after)


def test_status_has_identity_admission_rates_tables_queue_log_origins_and_errors(
    shared: Daemon, client: fl.FlightClient, table: Table
) -> None:
    put(client, table, events(0, 10), origin="status-origin", metadata=[{"sequence": 5}])
    persist(client, table)
    put(client, table, events(10, 20, days=4))
    status = _json(f"{shared.http}/api/status")
    identity = status["identity"]
    for name in ("ingester_id", "incarnation", "epoch", "pid", "flight", "http"):
        assert identity[name] == shared.ready[name]
    assert status["admission"]["accepts_writes"] is True
    mine = _table(shared, table)
    assert (mine["buffered"]["rows"], mine["buffered"]["partitions"]) == (20, 4)
    assert (mine["persisted"]["rows"], mine["persisted"]["files"]) == (10, 1)
    assert mine["buffered"]["bytes"] > 0
    assert mine["persisted"]["bytes"] > 0
    # Rates cover whole seconds, so the current second has to end first.
    give_up_at = time.monotonic() + 30
    while not status["rates"]["last_60s"]["rows_per_s"]:
        assert time.monotonic() < give_up_at
        status = _json(f"{shared.http}/api/status")
    assert status["persist"]["persisted"]["rows"] >= 10
    assert status["log"]["segments"] >= 1
    assert {
        "origin": "status-origin",
        "memory_sequence": 5,
        "durable_sequence": 5,
        "files_sequence": 5,
        "open": False,
    } in (status["origins"])
    assert isinstance(status["errors"], list)


def test_status_counts_the_states_of_sources_in_all_and_by_table(
    shared: Daemon, client: fl.FlightClient, table: Table
) -> None:
    def counts() -> tuple[dict[str, int], dict[str, int]]:
        status = _json(f"{shared.http}/api/status")
        return status["checkpoints"], _table(shared, table)["checkpoints"]

    checkpoint = {"partition": "p", "state": "AAAA"}
    create(client, table, events(0, 1).schema)
    before, mine = counts()
    assert mine == {"count": 0, "bytes": 0, "pending": 0}
    put(client, table, events(0, 10), origin="states", metadata=[
        {"sequence": 5, "checkpoint": {**checkpoint, "shared": "AAAAAAAA"}}
    ])  # fmt: skip
    put(client, table, events(10, 20), metadata=[{"checkpoint": {**checkpoint, "partition": "q"}}])
    after, mine = counts()
    assert mine == {"count": 2, "bytes": 12, "pending": 2}
    assert after == {name: before[name] + mine[name] for name in before}
    persist(client, table)
    after, mine = counts()
    assert mine == {"count": 2, "bytes": 12, "pending": 0}
    assert after == {name: before[name] + mine[name] for name in before}
    act(client, "checkpoint_delete", namespace=table[0], table=table[1], partition="q")
    assert counts()[1] == {"count": 1, "bytes": 9, "pending": 1}
    longer = {"partition": "p", "state": "AAAAAAA="}
    act(client, "checkpoint_put", namespace=table[0], table=table[1], **longer)
    assert counts()[1] == {"count": 1, "bytes": 11, "pending": 2}
    persist(client, table)
    assert counts()[1] == {"count": 1, "bytes": 5, "pending": 0}


def test_files_of_keyed_answers_are_shown_while_they_are_there(
    shared: Daemon, client: fl.FlightClient, table: Table
) -> None:
    """Regression: no metric showed the disk space of these files."""
    wide = pa.array([f"{n:01000d}" for n in range(4_000)])
    schema = pa.schema({"i": pa.int64(), "s": pa.string()})
    create(client, table, schema, primary_key=["i"])
    # More than the client library reads ahead on its own.
    for first in range(0, 40_000, 4_000):
        put(client, table, numbers(first, 4_000, s=wide))
    before = _metrics(shared)
    with fl.connect(shared.flight) as other:
        reader = other.do_get(ticket(table))
        reader.read_chunk()
        streams, during = _json(f"{shared.http}/api/status")["streams"], _metrics(shared)
        assert streams["files"] == during["ingester_answer_files"] == 1
        assert streams["file_bytes"] == during["ingester_answer_file_bytes"] > 40_000_000
        written = "ingester_answer_files_written_bytes_total"
        assert during[written] - before[written] > 40_000_000
        reader.read_all()
    until(
        lambda: _metrics(shared)["ingester_answer_file_bytes"] == 0, "the file of the answer to go"
    )
    assert _json(f"{shared.http}/api/status")["streams"]["files"] == 0


@pytest.mark.s3
def test_a_daemon_that_waits_for_its_store_is_live_and_not_ready(tmp_path: Path) -> None:
    with S3Server.start() as server:
        server.make_bucket("lake")
        address = f"127.0.0.1:{free_port()}"
        first = Daemon.start(
            tmp_path / "first",
            environment=server.environment,
            arguments=("--http", address),
            store="s3://lake/x",
        )
        first.kill()
        server.fault("unavailable", times=1_000_000)
        process = first.launch.spawn()
        try:
            url = f"http://{address}"
            while True:
                try:
                    status, _, body = http(f"{url}/health/ready")
                except OSError:
                    assert process.poll() is None
                    continue
                break
            assert status == 503
            assert json.loads(body)["reasons"] == ["starting"]
            assert http(f"{url}/health/live")[0] == 200
            assert _json(f"{url}/api/status")["identity"]["state"] == "starting"
            server.clear_faults()
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["event"] == "ready"
            assert http(f"{url}/health/ready")[0] == 200
        finally:
            process.kill()
            process.communicate()


LEAKS = re.compile(r"Traceback|\.py\b|site-packages|/ingester/|line \d+, in|0x[0-9a-f]{8}")


def _asked_wrongly(client: fl.FlightClient, table: Table) -> list[Any]:
    """Invalid calls of every kind."""
    path = fl.FlightDescriptor.for_path
    return [
        lambda: query(client, (table[0], "nope")),
        lambda: query(client, table, columns=["nope"]),
        lambda: query(client, table, filter=[[["i", "=", "x"]]]),
        lambda: query(client, table, scope="version", version=999),
        lambda: client.do_get(fl.Ticket(b"\x00")).read_all(),
        lambda: put(client, table, pa.record_batch({"i": pa.array(["x"])})),
        lambda: put(client, table, pa.record_batch({"_i": pa.array([1])})),
        lambda: put(client, table, numbers(0, 1), metadata=[b"{"]),
        lambda: put(client, ("-", "-"), numbers(0, 1)),
        lambda: act(client, "nope"),
        lambda: act(client, "checkpoint_get", x=1),
        lambda: act(client, "create_table", namespace="a", table="b", schema="AAAA"),
        lambda: create(client, table, pa.schema({"z": pa.int8()})),
        lambda: client.get_flight_info(path("a")),
        lambda: client.get_schema(path(table[0], "nope")),
        lambda: persist(client, table, timeout_s=-1),
    ]


def test_no_message_shows_a_traceback_or_a_source_path(
    shared: Daemon, client: fl.FlightClient, table: Table
) -> None:
    put(client, table, numbers(0, 1))
    for ask in _asked_wrongly(client, table):
        with pytest.raises(ARROW_AND_FLIGHT) as error:
            ask()
        shown = str(error.value) + str(getattr(error.value, "extra_info", ""))
        assert not LEAKS.search(shown), shown
        assert "internal error" not in shown
    assert "request failed" not in shared.stderr_file.read_text()


def test_errors_have_the_types_that_the_contract_names(
    client: fl.FlightClient, table: Table
) -> None:
    put(client, table, numbers(0, 1))
    with pytest.raises(pa.ArrowInvalid):
        query(client, table, columns=["nope"])
    with pytest.raises(pa.ArrowKeyError):
        query(client, (table[0], "nope"))
    with pytest.raises(pa.ArrowNotImplementedError):
        act(client, "nope")
    put(client, table, numbers(0, 50_000))
    with pytest.raises(fl.FlightTimedOutError) as error:
        persist(client, table, timeout_s=0)
    assert set(json.loads(error.value.extra_info)) >= {"code", "message"}


@pytest.mark.parametrize("method", ["do_exchange", "do_put_garbage"])
def test_what_is_not_offered_is_refused_and_harms_nobody(
    shared: Daemon, client: fl.FlightClient, table: Table, method: str
) -> None:
    if method == "do_exchange":
        writer, reader = client.do_exchange(fl.FlightDescriptor.for_path(*table))
        with pytest.raises(pa.ArrowNotImplementedError):
            reader.read_chunk()
        with pytest.raises(ARROW_AND_FLIGHT):
            writer.close()
    else:
        # An upload without any batch creates nothing.
        writer, _ = client.do_put(fl.FlightDescriptor.for_path(*table), numbers(0, 1).schema)
        writer.close()
    assert shared.process.poll() is None
