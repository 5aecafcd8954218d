"""A process that writes a copy is killed at any moment; rows and state agree."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from ingester.followers.parquet_sink import ParquetFolder
from tests.followers.killed_sink import table

ROOT = Path(__file__).resolve().parents[3]
KILLS = 6
Seen = tuple[dict[str, Any], list[int], list[str]]
"""The state, the ids in order, and the columns visible to readers."""


def in_duckdb(path: Path) -> Seen:
    with duckdb.connect(str(path), read_only=True) as reader:
        (found,) = reader.execute("SELECT state FROM _ingester.states").fetchall()
        ids = reader.execute("SELECT id FROM visits ORDER BY id").fetchall()
        described = reader.execute("FROM visits LIMIT 0").description
        copies = reader.execute("SELECT count(*) FILTER (shown) FROM _ingester.copies").fetchall()
        assert copies == [(1,)]
    return json.loads(found[0]), [id_ for (id_,) in ids], [name for name, *_ in described or ()]


def in_parquet(path: Path) -> Seen:
    # As a reader sees it before any recovery.
    files = [pq.read_table(file) for file in (path / "visits").glob("*.parquet")]
    ids = sorted(id_ for file in files for id_ in file["id"].to_pylist())
    followed = table("parquet:")
    sink = ParquetFolder(path).sink(followed)
    with sink.transaction():
        state = sink.checkpoint_store().get(followed.key())
    sink.close()
    assert state is not None
    names = sorted({name for file in files for name in file.column_names if name[0] == "c"})
    return json.loads(state), ids, ["id", "v", *names]


@pytest.mark.parametrize(("kind", "look"), [("duckdb", in_duckdb), ("parquet", in_parquet)])
def test_rows_and_state_agree_whenever_the_process_is_killed(
    tmp_path: Path, kind: str, look: Callable[[Path], Seen]
) -> None:
    path = tmp_path / "copy"
    rng = random.Random(31)
    reached = -1
    for _ in range(KILLS):
        told = killed(f"{kind}:{path}", rng)
        state, ids, columns = look(path)
        n = state["n"]
        assert n >= told, "what was committed is lost"
        assert n > reached
        assert ids == list(range(10 * n + 10))
        assert columns == ["id", "v", *(f"c{n}" for n in range(state["columns"]))]
        reached = n


def killed(into: str, rng: random.Random) -> int:
    """Run the program and kill it; return the last transaction that it printed."""
    command = [sys.executable, "-m", "tests.followers.killed_sink", into]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    told = -1
    for _ in range(rng.randrange(1, 15)):
        told = int(process.stdout.readline())
    try:
        # The kill hits any point of the next transaction.
        process.wait(rng.random() * 0.05)
    except subprocess.TimeoutExpired:
        process.kill()
    process.wait()
    process.stdout.close()
    return told
