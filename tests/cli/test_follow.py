"""``ingester follow`` as users run it: continuing copies, messages, and refusals."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from ingester.client import Client
from tests.cli.conftest import ROOT, Run, check_refused
from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until

USER_CLASS = """
from ingester.followers import FollowerSink
class Printing(FollowerSink):
    def __init__(self, table): self.file = open("told.txt", "a")
    def on_start_version(self, partitions, is_current): print("start", file=self.file)
    def put(self, rows): print(sorted(rows.batch["id"].to_pylist()), file=self.file)
    def delete(self, keys): pass
    def on_end_version(self, current): print("end", file=self.file)
    def on_recovery(self): print("recovery", file=self.file)
    def close(self): self.file.close()
"""


@pytest.fixture
def client(served: Daemon) -> Iterator[Client]:
    with Client(served.flight) as client:
        yield client


def write(client: Client, table: str, first: int, count: int = 3) -> None:
    ids = list(range(first, first + count))
    client.write("follow", table, {"id": ids, "host": [f"h{n}" for n in ids]})


def seen(path: Path, table: str, columns: str = "id") -> list[Any]:
    """Return a reader's rows; it may have to wait for the follower, as every reader does."""

    def opened() -> bool:
        with contextlib.suppress(duckdb.IOException):
            with duckdb.connect(str(path), read_only=True) as reader:
                query = f'SELECT {columns} FROM "{table}" ORDER BY id'
                found.append(reader.execute(query).fetchall())
            return True
        return False

    found: list[list[Any]] = []
    until(opened, "the follower to let the file go", 30.0)
    return [row[0] if len(row) == 1 else row for row in found[-1]]


@contextlib.contextmanager
def following(
    served: Daemon, folder: Path, *arguments: object, command: str = "follow"
) -> Iterator[subprocess.Popen[str]]:
    """Run a follower until it is told to stop."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ingester", command, *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "INGESTER_ENDPOINT": served.flight},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def says(process: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    """Wait until the process prints the pattern on standard error."""
    assert process.stderr is not None
    said = []
    while line := process.stderr.readline():
        said.append(line)
        if found := re.search(pattern, line):
            return found
    raise AssertionError(f"ended without {pattern!r}: {said}")


def test_a_copy_is_loaded_once_and_then_resumed(run: Run, client: Client, tmp_path: Path) -> None:
    write(client, "one", 0)
    client.persist("follow", "one")
    write(client, "one", 10)
    for number in (1, 2, 3):
        done = run("follow", "follow", "one", "--into", "duckdb:c.duckdb", "--once", "--json")
        assert done.returncode == 0, done.stderr
        (facts,) = json.loads(done.stdout)
        assert facts["put_rows"] == (3 if number > 1 else facts["put_rows"])
        assert (facts["phase"], facts["error"]) == ("live", None)
        assert len(seen(tmp_path / "c.duckdb", "one")) == 3 + 3 * number
        write(client, "one", 10 + 10 * number)


def test_columns_and_filter_define_the_copy_and_a_change_rebuilds_it(
    run: Run, client: Client, tmp_path: Path
) -> None:
    write(client, "chosen", 0, 10)
    path = tmp_path / "c.duckdb"
    asked = ["follow", "follow", "chosen", "--into", "duckdb:c.duckdb", "--once"]
    assert run(*asked, "--columns", "id", "--filter", "id < 4").returncode == 0
    assert seen(path, "chosen", "*") == [0, 1, 2, 3]
    done = run(*asked, "--filter", "id >= 8")
    assert done.returncode == 0
    assert seen(path, "chosen", "*") == [(8, "h8"), (9, "h9")]
    assert done.stdout.decode().splitlines()[0].split()[:3] == ["namespace", "table", "version"]


def test_a_follower_resumes_after_a_kill_and_stops_cleanly_at_a_signal(
    served: Daemon, client: Client, tmp_path: Path
) -> None:
    write(client, "live", 0)
    path = tmp_path / "c.duckdb"
    arguments = ("follow", "live", "--into", "duckdb:c.duckdb")
    with following(served, tmp_path, *arguments) as process:
        says(process, "follow/live: live")
        write(client, "live", 10)
        until(lambda: len(seen(path, "live")) == 6, "what was written", 10.0)
        process.kill()
    write(client, "live", 20)
    with following(served, tmp_path, *arguments, "--json") as process:
        says(process, "follow/live: live")
        assert len(seen(path, "live")) == 9
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=30)
        assert process.returncode == 0
        assert json.loads(out)[0]["put_rows"] == 3


def test_metrics_and_health_are_served_at_the_given_address(
    served: Daemon, client: Client, tmp_path: Path
) -> None:
    write(client, "told", 0)
    arguments = ("follow", "told", "--into", "duckdb:c.duckdb", "--http", "127.0.0.1:0")
    with following(served, tmp_path, *arguments) as process:
        url = says(process, r"metrics on (http://127.0.0.1:\d+)/metrics")[1]
        says(process, "follow/told: live")
        assert fetched(f"{url}/health/live") == (200, "live\n")
        assert fetched(f"{url}/health/ready") == (200, "ready\n")
        assert fetched(f"{url}/nothing")[0] == 404
        assert fetched(f"{url}/metrics", Host="elsewhere.example")[0] == 421
        text = fetched(f"{url}/metrics")[1]
    labels = '{namespace="follow",table="told"}'
    assert f"ingester_follower_rows_put_total{labels} 3.0" in text
    assert f"ingester_follower_up{labels} 1.0" in text
    assert f"ingester_follower_lag_operations{labels} 0.0" in text
    assert f"ingester_follower_lag_rows{labels} 0.0" in text
    assert re.search(rf"ingester_follower_lag_seconds{re.escape(labels)} \d", text)
    assert re.search(r'follower_call_seconds_count\{call="put",.*table="told"\} 1.0', text)
    assert re.search(r'follower_call_seconds_count\{call="commit",.*\} [1-9]', text)
    for name in ("fill_files", "fill_files_done", "fill_bytes", "fill_bytes_done", "version"):
        assert f"ingester_follower_{name}{labels}" in text


def fetched(url: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as exc:
        return exc.code, exc.read().decode()


def test_a_reader_with_the_file_open_is_reported_and_waited_for(
    served: Daemon, client: Client, tmp_path: Path
) -> None:
    write(client, "held", 0)
    path = tmp_path / "c.duckdb"
    with following(served, tmp_path, "follow", "held", "--into", "duckdb:c.duckdb") as process:
        says(process, "follow/held: live")
        let_go = threading.Event()

        def hold() -> None:
            until(opened, "the file to be free", 10.0)

        def opened() -> bool:
            with contextlib.suppress(duckdb.IOException):
                with duckdb.connect(str(path), read_only=True):
                    write(client, "held", 10)
                    let_go.wait(30)
                return True
            return False

        thread = threading.Thread(target=hold)
        thread.start()
        says(process, rf"c\.duckdb is open in another process: .*PID {os.getpid()}")
        let_go.set()
        thread.join()
        until(lambda: len(seen(path, "held")) == 6, "what was written", 10.0)
        # It also ends at a signal while it waits.
        with duckdb.connect(str(path), read_only=True):
            write(client, "held", 20)
            says(process, "is open in another process")
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0


def test_a_users_class_keeps_its_state_at_the_daemon(
    run: Run, client: Client, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(USER_CLASS)
    write(client, "own", 0)
    asked = ["follow", "follow", "own", "--into", "python:mine:Printing", "--once"]
    failed = run(*asked)
    check_refused(failed, 1, "needs a name")
    for _ in range(2):
        done = run(*asked, "--name", "reports")
        assert done.returncode == 0, done.stderr
        write(client, "own", 10)
    told = (tmp_path / "told.txt").read_text().splitlines()
    assert told == ["start", "[0, 1, 2]", "end", "recovery", "[10, 11, 12]"]


def test_two_tables_go_into_one_parquet_folder(run: Run, client: Client, tmp_path: Path) -> None:
    for table in ("p1", "p2"):
        write(client, table, 0)
    asked = ["follow", "follow", "p1", "p2", "--into", "parquet:folder", "--once"]
    assert run(*asked).returncode == 0
    write(client, "p2", 3)
    assert run(*asked).returncode == 0
    found = [pq.read_table(tmp_path / "folder" / table)["id"].to_pylist() for table in ("p1", "p2")]
    assert [sorted(ids) for ids in found] == [[0, 1, 2], [0, 1, 2, 3, 4, 5]]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere", "--into", "duckdb:c"], 1, "table follow/nowhere does not exist"),
        (["there"], 2, ""),
        (["there", "--into", "c.duckdb"], 1, "is not a destination"),
        (["there", "--into", "duckdb:no/folder/c"], 1, "No such file or directory"),
        (["there", "--into", "duckdb:text"], 1, "text exists and is not a DuckDB file"),
        (["there", "--into", "duckdb:c", "--columns", "nope"], 1, "unknown column 'nope'"),
        (["there", "--into", "duckdb:c", "--columns", "a,,b"], 2, "has an empty name"),
        (["there", "--into", "duckdb:c", "--filter", "id <"], 2, "filter"),
        (["there", "--into", "duckdb:c", "--filter", "nope = 1"], 1, "unknown column 'nope'"),
        (["there", "--into", "duckdb:c", "--from", "soon"], 2, "neither beginning, tail nor a"),
        (["there", "--into", "duckdb:c", "--http", "80"], 2, "--http '80' is not HOST:PORT"),
        (["there", "--into", "duckdb:c", "--store", "nope://x"], 1, "store"),
        (["there", "there", "--into", "duckdb:c"], 1, "is named twice"),
        (["there", "--into", "python:nope:X"], 1, "module 'nope' was not found"),
    ],
)
def test_an_unsupported_table_is_refused_in_one_line(
    run: Run, client: Client, tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    write(client, "there", 0)
    (tmp_path / "text").write_text("no database")
    check_refused(run("follow", "follow", *arguments, "--once"), code, message)


def test_a_missing_daemon_is_reported_at_once(run: Run) -> None:
    failed = run("follow", "n", "t", "--into", "duckdb:c", "--endpoint", "127.0.0.1:1")
    check_refused(failed, 3, "cannot connect to 127.0.0.1:1")


def test_a_copy_starts_at_the_given_position_and_the_same_command_resumes_it(
    run: Run, client: Client, tmp_path: Path
) -> None:
    write(client, "tail", 0)
    client.persist("follow", "tail")
    asked = ["follow", "follow", "tail", "--into", "duckdb:c.duckdb", "--from", "tail", "--once"]
    assert run(*asked).returncode == 0
    assert seen(tmp_path / "c.duckdb", "tail") == []
    for first in (10, 20):
        # The same command again, as a service manager runs it after each restart: no gap.
        write(client, "tail", first)
        assert run(*asked).returncode == 0
        found = seen(tmp_path / "c.duckdb", "tail")
        assert found == [n + m for n in range(10, first + 10, 10) for m in range(3)]
    assert run(*asked[:-3], "--anew", "--once").returncode == 0
    assert len(seen(tmp_path / "c.duckdb", "tail")) == 9
    late = run(*asked[:4], "duckdb:d.duckdb", "--from", "2001-01-01T00:00:00", "--once")
    # A slow command first prints a line of progress.
    late.stderr = late.stderr.splitlines(keepends=True)[-1]
    check_refused(late, 1, "seek: ")
