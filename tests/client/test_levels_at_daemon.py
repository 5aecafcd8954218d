"""Acknowledgements in object storage, at a real daemon that loses its machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from ingester.client import Checkpoint, Client, InvalidRequest, RetryPolicy, SyncColumn
from tests.cli.conftest import run_command
from tests.client.wire_cutter import WireCutter
from tests.drivers.daemon import Daemon, Launch
from tests.drivers.ports import steady_flight
from tests.drivers.waiting import until

SCHEMA = pa.schema([("v", pa.int64())])
PATIENT = RetryPolicy(for_s=60, first_delay_s=0.02, max_delay_s=0.2)
KEY = [SyncColumn("old_pk", "v"), SyncColumn("new_pk", "v")]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon.start(
        tmp_path / "d", arguments=steady_flight(), store=f"file://{tmp_path}/store"
    ) as started:
        yield started


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    with Client(daemon.flight, retry=PATIENT) as connected:
        yield connected


def on_another_machine(daemon: Daemon) -> Daemon:
    """Kill a daemon and lose its disk; one of the same id at the same address."""
    daemon.kill()
    shutil.rmtree(daemon.data_dir)
    return daemon.again()


def rows(*values: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA)


def found(client: Client, table: str = "t") -> list[int]:
    return sorted(client.query("ns", table)["v"].to_pylist())


def test_a_writer_continues_across_the_loss_of_the_machine(daemon: Daemon, client: Client) -> None:
    half_way, lost = threading.Event(), threading.Event()
    total = 400
    levels: list[str | None] = []

    def write() -> None:
        with client.writer("ns", "t", SCHEMA, ack="store", max_unanswered=40) as writer:
            acks = []
            for n in range(total):
                acks.append(writer.write(rows(n)))
                if n == total // 2:
                    half_way.set()
                    assert lost.wait(60)
        levels.extend(ack.result(0).ack for ack in acks)

    writing = threading.Thread(target=write)
    writing.start()
    assert half_way.wait(60)
    with on_another_machine(daemon):
        lost.set()
        writing.join(90)
        assert found(client) == list(range(total))
    assert levels == ["store"] * total


def test_everything_acknowledged_in_object_storage_survives_the_machine(
    daemon: Daemon, client: Client
) -> None:
    client.create_table("ns", "keyed", SCHEMA, primary_key=["v"])
    client.write("ns", "keyed", rows(1, 2, 3), ack="store")
    assert client.delete("ns", "keyed", rows(2), ack="store").ack == "store"
    with client.writer("ns", "t", SCHEMA, origin="o", ack="store") as writer:
        writer.write(rows(1), Checkpoint("p", b"after 1")).result(30)
    stream = client.sync("ns", "s", ack="store")
    message = pa.record_batch([pa.nulls(1, pa.int64()), pa.array([9])], names=["0", "1"])
    assert stream.send("keyed", KEY, message, begin=True, sequence=4).ack == "store"
    with on_another_machine(daemon):
        assert found(client, "keyed") == [1, 3, 9]
        assert found(client) == [1]
        assert client.checkpoint("ns", "t", "p").state == b"after 1"
        assert client.sync("ns", "s").standing().memory_sequence == 4


def test_a_table_of_the_level_store_answers_every_writer_so(daemon: Daemon, client: Client) -> None:
    assert client.create_table("ns", "t", SCHEMA, ack="store").ack == "store"
    assert client.describe("ns", "t").ack == "store"
    assert client.write("ns", "t", rows(1)).ack == "store"
    with pytest.raises(InvalidRequest, match="not for less"):
        client.write("ns", "t", rows(2), ack="disk")
    client.create_table("ns", "plain", SCHEMA)
    assert client.describe("ns", "plain").ack == "disk"
    assert client.write("ns", "plain", rows(1)).ack == "disk"
    with on_another_machine(daemon):
        assert found(client) == [1]


def test_a_repeat_is_acknowledged_in_object_storage_only_when_the_first_copy_is_there(
    daemon: Daemon, client: Client
) -> None:
    numbered = {"origin": "o", "first_sequence": 1}
    assert client.write("ns", "t", rows(1), **numbered).ack == "disk"  # type: ignore[arg-type]
    again = client.write("ns", "t", rows(1), ack="store", **numbered)  # type: ignore[arg-type]
    assert (again.duplicates, again.ack) == (1, "store")
    with on_another_machine(daemon):
        assert found(client) == [1]


def test_the_command_write_says_where_rows_are_acknowledged(daemon: Daemon, tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        done = run_command(*arguments, cwd=tmp_path, endpoint=daemon.flight)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode()

    (tmp_path / "rows.csv").write_text("v\n1\n2\n")
    assert "acknowledged in object storage" in run("create", "ns", "t", "v:int64", "--ack", "store")
    assert "in 1 operations in object storage (" in run("write", "ns", "t", "rows.csv")
    told = json.loads(run("write", "ns", "u", "rows.csv", "--ack", "store", "--json"))
    assert (told["rows"], told["ack"]) == (2, "store")
    told = json.loads(run("write", "ns", "u", "rows.csv", "--json"))
    assert (told["rows"], told["ack"]) == (2, "store"), "its operations are shipped by now"
    told = json.loads(run("write", "ns", "v", "rows.csv", "--json"))
    assert told["ack"] == "disk"


def test_batches_that_a_paused_daemon_has_not_answered_go_to_its_successor(
    daemon: Daemon, tmp_path: Path
) -> None:
    """The paused one wakes up, finds itself fenced, and says that their outcome is unknown."""
    settings = {**daemon.launch.settings}
    successor = Launch(tmp_path / "e", {}, steady_flight(), settings)
    with (
        WireCutter(int(daemon.flight.rpartition(":")[2])) as wire,
        Client(wire.endpoint, retry=PATIENT) as client,
        client.writer("ns", "t", SCHEMA, ack="store") as writer,
    ):
        writer.write(rows(0)).result(30)
        os.kill(daemon.pid, signal.SIGSTOP)
        acks = [writer.write(rows(n)) for n in range(1, 50)]
        with successor.start() as started:
            os.kill(daemon.pid, signal.SIGCONT)
            assert daemon.wait() == 6
            until(lambda: not any(ack.done() for ack in acks), "no answer of the fenced daemon", 1)
            wire.cut(int(started.flight.rpartition(":")[2]))
            assert writer.flush().ack == "store"
            assert found(client) == list(range(50))
