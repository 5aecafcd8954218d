"""The client library of an earlier version, in a process of its own, against a daemon of today."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.drivers.daemon import Daemon

HERE = Path(__file__).parent


def test_the_old_client_does_all_that_it_did(tmp_path: Path) -> None:
    program, archive = HERE / "old_client_program.py", HERE / "old_client.zip"
    with Daemon.start(tmp_path / "data") as daemon:
        done = subprocess.run(
            [sys.executable, str(program), str(archive), daemon.flight],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", 0)
