"""A reader of a DuckDB copy waits for its follower, up to its timeout."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import duckdb
import pytest

from ingester.client.errors import TimedOut
from ingester.followers.duckdb_file import open_copy
from tests.followers.test_duckdb_file import held, made

ROOT = Path(__file__).resolve().parents[3]


def test_a_reader_waits_until_the_file_is_free(tmp_path: Path) -> None:
    path = tmp_path / "c.duckdb"
    made(path).close()
    with held(path, "write") as process:
        with pytest.raises(
            TimedOut, match=rf"c\.duckdb was not free within 0\.05 s.*{process.pid}"
        ):
            open_copy(path, wait_s=0.05)
        assert process.stdin is not None
        timer = threading.Timer(0.1, process.stdin.close)
        timer.start()
        with open_copy(str(path), wait_s=30.0) as reader:
            assert reader.execute("FROM t").fetchall() == []
        timer.join()


def test_what_waiting_does_not_help_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database")
    for name in ("text", "nothing"):
        with pytest.raises(duckdb.IOException):
            open_copy(tmp_path / name, wait_s=60.0)


EAGER = """
import sys, time
from ingester.followers.duckdb_file import open_copy
print("ready", flush=True)
while True:
    with open_copy(sys.argv[1], wait_s=60.0) as reader:
        reader.execute("FROM t").fetchall()
    time.sleep(0.02)
"""


def test_a_reader_that_opens_it_again_and_again_does_not_shut_the_follower_out(
    tmp_path: Path,
) -> None:
    path = tmp_path / "c.duckdb"
    file = made(path)
    process = subprocess.Popen(
        [sys.executable, "-c", EAGER, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for number in range(20):
        with file.transaction() as connection:
            connection.execute("INSERT INTO t VALUES (?)", [number])
    assert process.poll() is None
    process.kill()
    process.wait()
    process.stdout.close()
    with open_copy(path) as reader:
        assert reader.execute("SELECT count(*) FROM t").fetchall() == [(20,)]
    file.close()


def test_a_reader_in_the_followers_process_takes_turns_with_it(tmp_path: Path) -> None:
    path = tmp_path / "c.duckdb"
    file = made(path)
    done = threading.Event()

    def write() -> None:
        for number in range(30):
            with file.transaction() as connection:
                connection.execute("INSERT INTO t VALUES (?)", [number])
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    counts = []
    while not done.is_set():
        with open_copy(path, wait_s=30.0) as reader:
            counts.append(reader.execute("SELECT count(*) FROM t").fetchall()[0][0])
    thread.join()
    assert counts == sorted(counts)
    with open_copy(path) as reader:
        assert reader.execute("SELECT count(*) FROM t").fetchall() == [(30,)]
    file.close()


def test_a_reader_in_the_followers_process_does_not_let_another_process_write(
    tmp_path: Path,
) -> None:
    path = tmp_path / "c.duckdb"
    file = made(path)
    inside, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with file.transaction():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=stay)
    thread.start()
    assert inside.wait(30)
    with pytest.raises(TimedOut, match="a follower in another thread writes to it"):
        open_copy(path, wait_s=0.05)
    # DuckDB's lock still exists: the file was not opened a second time.
    code = f"import duckdb; duckdb.connect({str(path)!r})"
    refused = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "Could not set lock" in refused.stderr
    leave.set()
    thread.join()
    file.close()
