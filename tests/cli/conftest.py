"""The command ``ingester`` as a user runs it, and a real daemon."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.drivers.daemon import Daemon
from tests.drivers.warm import warm

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One daemon for all tests of the command line; each test has its own namespace."""
    with Daemon.start(tmp_path_factory.mktemp("cli") / "data") as daemon:
        yield daemon


def run_command(
    *arguments: object,
    cwd: Path,
    endpoint: str | None = None,
    stdin: bytes = b"",
    **variables: str,
) -> "subprocess.CompletedProcess[bytes]":
    """Run a command and return it, with its exit code in ``returncode``."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    if endpoint is not None:
        environment["INGESTER_ENDPOINT"] = endpoint
    return warm().run([*map(str, arguments)], environment, cwd, stdin)


def check_refused(failed: "subprocess.CompletedProcess[bytes]", code: int, message: str) -> None:
    """Check the exit code and the line on stderr; an empty ``message`` allows several lines."""
    said = failed.stderr.decode()
    assert (failed.returncode, failed.stdout) == (code, b"")
    assert message in said
    assert "Traceback" not in said
    if message:
        assert said.startswith("ingester: ")
        assert said.count("\n") == 1


@pytest.fixture
def run(served: Daemon, tmp_path: Path) -> Run:
    """Run a command in an empty folder, with the daemon as its endpoint."""

    def command(
        *arguments: object, stdin: bytes = b"", **variables: str
    ) -> "subprocess.CompletedProcess[bytes]":
        return run_command(
            *arguments, cwd=tmp_path, endpoint=served.flight, stdin=stdin, **variables
        )

    return command


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> str:
    """A namespace that no other test uses."""
    name: str = request.node.name
    return "".join(c if c.isalnum() else "-" for c in name)[-100:].strip("-")
