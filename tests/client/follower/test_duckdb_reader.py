"""A reader of a DuckDB copy waits for its follower, and no longer than it is told."""

from __future__ import annotations

import threading
from pathlib import Path

import duckdb
import pytest

from ingester.client.errors import TimedOut
from ingester.client.follower.duckdb_reader import open_copy
from tests.client.follower.test_duckdb_file import held, made


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
