"""A reader of a DuckDB copy waits for its follower, and no longer than it is told."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import duckdb
import pytest

from ingester.client.errors import TimedOut
from ingester.client.follower.duckdb_reader import open_copy
from tests.client.follower.test_duckdb_file import held, made

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
from ingester.client.follower.duckdb_reader import open_copy
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
