"""The client library of each release, in its own process, against today's daemon."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drivers.daemon import Daemon
from tests.upgrades.fixture import Fixture, fixtures

PROGRAM = Path(__file__).with_name("old_client_program.py")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One daemon for all clients; each has its own namespace."""
    with Daemon.start(tmp_path_factory.mktemp("clients") / "data") as started:
        yield started


@pytest.mark.parametrize("fixture", fixtures(), ids=lambda each: str(each.release))
def test_an_old_client_does_all_that_it_did(
    fixture: Fixture, daemon: Daemon, tmp_path: Path
) -> None:
    asked = [str(PROGRAM), str(fixture.client), daemon.flight, f"c-{fixture.release}"]
    done = subprocess.run([sys.executable, *asked], cwd=tmp_path, capture_output=True, text=True)
    # It repeats a sequence, of which later releases warn.
    told = [line for line in done.stderr.splitlines() if "so nothing was added" not in line]
    assert (done.stdout, told, done.returncode) == ("done\n", [], 0)
