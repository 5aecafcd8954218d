"""A lost disk's rows are adopted even if their origin has moved several times since."""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

from ingester.client import Client
from tests.client.cluster.three import Three

SCHEMA = pa.schema({"n": pa.int64()})


class Origin:
    """One origin's rows 0, 1, 2, …, written at any of the daemons."""

    def __init__(self, daemons: Three) -> None:
        self.daemons = daemons
        self.rows = 0

    def write(self, daemon: int, count: int) -> None:
        """Write ``count`` more rows at a daemon, all acknowledged."""
        with Client(self.daemons.endpoints[daemon], timeout_s=10) as client:
            options = {"origin": "o", "first_sequence": self.rows + 1}
            with client.writer("ns", "t", SCHEMA, **options) as writer:  # type: ignore[arg-type]
                for _ in range(count):
                    writer.write({"n": [self.rows]}).result(20)
                    self.rows += 1


@pytest.mark.parametrize("closes", [False, True])
def test_an_epoch_with_a_lost_log_is_not_treated_as_fully_flushed(
    tmp_path: Path, closes: bool
) -> None:
    with ExitStack() as stack:
        daemons = Three(tmp_path, stack)
        origin = Origin(daemons)
        with Client(daemons.endpoints) as client:
            client.create_table("ns", "t", SCHEMA)
        # Each daemon has unflushed rows of the origin.
        for first, second in ((0, 1), (0, 2), (0, 1)):
            origin.write(first, 3)
            origin.write(second, 2)
        daemons.daemons[0].kill()
        shutil.copytree(tmp_path / "d0", tmp_path / "lost")
        shutil.rmtree(tmp_path / "d0")
        daemons.again(0, "--accept-lost-log")
        for first, second in ((0, 1), (0, 2), (0, 1)):
            origin.write(first, 3)
            origin.write(second, 2)
        if closes:  # a clean stop: the daemon has flushed all rows that it knows
            assert daemons.daemons[0].terminate() == 0
            for first, second in ((1, 2), (1, 2), (1, 2)):
                origin.write(first, 1)
                origin.write(second, 1)
            daemons.again(0)
        for endpoint in daemons.endpoints:
            with Client(endpoint) as client:
                client.persist("ns", "t")
        origin.write(0, 1)
        command = [sys.executable, "-m", "ingester", "wal", "adopt", str(tmp_path / "lost")]
        command += ["--store", f"file://{tmp_path}/store"]
        subprocess.run(command, check=True, capture_output=True)
        with Client(daemons.endpoints) as client:
            found = sorted(client.query("ns", "t")["n"].to_pylist())
        assert found == [*range(origin.rows)]
