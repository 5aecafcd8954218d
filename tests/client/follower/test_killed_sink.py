"""A process that writes into a DuckDB file is killed at any moment: rows and state agree."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import duckdb

ROOT = Path(__file__).resolve().parents[3]
KILLS = 6


def test_rows_and_state_agree_whenever_the_process_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "copy.duckdb"
    rng = random.Random(31)
    reached = -1
    for _ in range(KILLS):
        command = [sys.executable, "-m", "tests.client.follower.killed_sink", str(path)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        told = -1
        for _ in range(rng.randrange(1, 15)):
            told = int(process.stdout.readline())
        try:
            # Anywhere in what comes next: nothing says where.
            process.wait(rng.random() * 0.05)
        except subprocess.TimeoutExpired:
            process.kill()
        process.wait()
        process.stdout.close()
        state = check(path)
        assert state >= told, "what was committed is lost"
        assert state > reached
        reached = state


def check(path: Path) -> int:
    """Check that readers see what the state says; how far it is."""
    with duckdb.connect(str(path), read_only=True) as reader:
        (found,) = reader.execute("SELECT state FROM _ingester.states").fetchall()
        state = json.loads(found[0])
        n = state["n"]
        assert reader.execute("SELECT id FROM visits ORDER BY id").fetchall() == [
            (id_,) for id_ in range(10 * n + 10)
        ]
        described = [name for name, *_ in reader.execute("FROM visits LIMIT 0").description or ()]
        assert described == ["id", "v", *(f"c{n}" for n in range(state["columns"]))]
        copies = reader.execute("SELECT count(*) FILTER (shown) FROM _ingester.copies").fetchall()
        assert copies == [(1,)]
    return int(n)
