"""``ingester tail`` and ``ingester log-level`` as users run them."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa

from ingester.cli.output.formats import HEADING_EVERY, LiveTable
from ingester.client import Client
from tests.cli.conftest import Run, check_refused
from tests.cli.test_follow import following
from tests.drivers.daemon import Daemon
from tests.drivers.ports import steady_flight
from tests.drivers.waiting import until


def told(process: subprocess.Popen[str], rows: int) -> list[Any]:
    """Return the next rows that it prints."""
    assert process.stdout is not None
    return [json.loads(process.stdout.readline()) for _ in range(rows)]


def test_each_row_is_printed_once_through_kills_stops_and_flushes(tmp_path: Path) -> None:
    ids = iter(range(1, 1000))

    def write(daemon: Daemon) -> int:
        with Client(daemon.flight) as client:
            client.write("s", "t", {"id": [number := next(ids)], "host": [f"h{number % 2}"]})
        return number

    def asked(daemon: Daemon) -> None:
        """Wait until the tail has a call open, so that it notices the daemon's end."""
        with Client(daemon.flight) as client:
            until(lambda: client.status()["streams"]["waiting"] == 1, "the tail to have asked")

    store = f"file://{tmp_path}/store"
    daemon = Daemon.start(tmp_path / "d", arguments=steady_flight(), store=store)
    arguments = ("s", "t", "--since", "start", "--json", "--columns", "id")
    try:
        expected = [write(daemon)]
        with Client(daemon.flight) as client:
            client.persist()
        expected.append(write(daemon))
        daemon.kill()
        with following(daemon, tmp_path, *arguments, command="tail") as process:
            assert process.stderr is not None
            assert "waiting: cannot connect" in process.stderr.readline()
            daemon = daemon.again()
            assert told(process, 2) == [{"id": number} for number in expected]
            for in_order in (False, True):
                number = write(daemon)
                assert told(process, 1) == [{"id": number}]
                asked(daemon)
                daemon.terminate() if in_order else daemon.kill()
                daemon = daemon.again()
            number = write(daemon)
            assert told(process, 1) == [{"id": number}]
            # A lost disk: rows taken before the tail asks again are also shown.
            asked(daemon)
            process.send_signal(signal.SIGSTOP)
            daemon.kill()
            shutil.rmtree(daemon.data_dir)
            daemon = daemon.again(recovery__accept_lost_log="true")
            number = write(daemon)
            process.send_signal(signal.SIGCONT)
            assert told(process, 1) == [{"id": number}]
            number = write(daemon)
            assert told(process, 1) == [{"id": number}]
            process.send_signal(signal.SIGINT)
            left, said = process.communicate(timeout=10)
            assert (process.returncode, left) == (0, "")
            assert (said.count("waiting:"), said.count("resumed")) == (3, 4)
            assert said.count("not shown") == said.count("without the log of epoch 4") == 1
    finally:
        daemon.kill()


def test_rows_of_a_keyed_table_show_their_operation_and_a_limit_ends_the_tail(
    run: Run, served: Daemon, namespace: str, tmp_path: Path
) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
    with Client(served.flight) as client:
        client.create_table(namespace, "k", schema, primary_key=["id"])
        client.write(namespace, "k", {"id": [1, 2, 3], "v": [10, 20, 30]})
        asked = ("--filter", "id < 3", "--since", "start", "--limit", "3", "--json")
        with following(served, tmp_path, namespace, "k", *asked, command="tail") as process:
            assert [row["id"] for row in told(process, 2)] == [1, 2]
            client.delete(namespace, "k", {"id": [2, 3]})
            assert told(process, 1) == [{"id": 2, "v": None, "_op": "delete"}]
            assert process.wait(10) == 0
    csv = run("tail", namespace, "k", "--since", "start", "--limit", "1", "--format", "csv")
    assert csv.stdout.decode().splitlines() == ['"id","v","_op"', '1,10,"upsert"']
    check_refused(run("tail", namespace, "k", "--since", "noon"), 2, "neither now nor start")
    check_refused(run("tail", namespace, "k", "--format", "arrow"), 2, "not one of table, jsonl")
    check_refused(run("tail", namespace, "nowhere"), 1, "nowhere")
    check_refused(run("tail", namespace, "k", "--columns", "x"), 1, "'x'")


def test_rows_flushed_before_they_were_printed_are_reported(tmp_path: Path) -> None:
    with (
        Daemon.start(tmp_path / "d", query__tail_retain=0) as daemon,
        Client(daemon.flight) as client,
    ):
        client.write("s", "t", {"id": [1]})
        with following(daemon, tmp_path, "s", "t", "--json", command="tail") as process:
            assert process.stderr is not None
            assert "new rows of daemon" in process.stderr.readline()
            process.send_signal(signal.SIGSTOP)
            client.write("s", "t", {"id": list(range(2, 200_000))})
            client.write("s", "t", {"id": [200_001]})
            client.persist()
            process.send_signal(signal.SIGCONT)
            client.write("s", "t", {"id": [200_002]})
            assert process.stdout is not None
            rows = [json.loads(process.stdout.readline())["id"]]
            while rows[-1] != 200_002:
                rows.append(json.loads(process.stdout.readline())["id"])
            # Either the answer was already complete, or its gap is reported.
            if len(rows) < 200_001 - 1:
                assert "files of version" in process.stderr.readline()
            assert len(set(rows)) == len(rows)


def test_an_endless_table_is_aligned_and_repeats_its_header() -> None:
    lines: list[str] = []
    table = LiveTable(lines.append, repeats=True)
    table.write(pa.record_batch({"id": [1], "host": ["a"]}))
    table.write(pa.record_batch({"id": [2], "host": ["much longer\x1b[2J"]}))
    assert lines == ["id  host", "1   a", "2   much longer\\x1b[2J"]
    table.write(pa.record_batch({"id": [3], "host": ["c"], "v": [1.5]}))
    assert lines[3].split() == ["id", "host", "v"]
    table.write(pa.record_batch({"id": range(HEADING_EVERY), "host": ["c"] * 50, "v": [0.5] * 50}))
    assert sum(line.startswith("id") for line in lines) == 3


def test_a_log_level_is_set_shown_and_reset(run: Run, served: Daemon) -> None:
    set_ = run("log-level", "DEBUG", "--logger", "ingester.server", "--for", "10m", "--json")
    (level,) = json.loads(set_.stdout)["set"]
    assert (level["logger"], level["level"], level["until"] is None) == (
        *("ingester.server", "debug"),
        False,
    )
    assert b"debug of ingester.server, until 2" in run("status").stdout
    assert "request let in" in served.stderr_file.read_text()
    assert run("log-level", "default").stdout.decode().split() == [
        *("logger", "level", "until", "(log.level)", "info")
    ]
    check_refused(run("log-level", "loud"), 2, "is none of debug, info")
    check_refused(run("log-level", "debug", "--logger", "ingester.x"), 2, "there is no logger")
    for command in ("drain", "log-level"):
        check_refused(
            run(command, "--endpoint", f"{served.flight},127.0.0.1:9"),
            2,
            "name one with --endpoint",
        )
    check_refused(run("log-level", "--for", "10m"), 2, "--for needs a LEVEL")
    check_refused(run("log-level", "debug", "--for", "soon"), 2, "--for: not a duration")
