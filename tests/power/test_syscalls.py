"""System calls of the log fail, injected with strace, and no row is lost.

After a fault in the calls of a real daemon, a daemon without faults has every acknowledged row
once, and no unsent row.
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.daemon import COMMAND, Daemon, Launch
from tests.drivers.wire import Stream, numbers, path, persist, rows

TABLE = ("it", "faulty")
EXIT_LOG_FAILED = 1
SETTINGS: dict[str, object] = {"wal__segment_bytes": "1MiB", "memory__limit": "256MiB"}


def _traceable() -> bool:
    if shutil.which("strace") is None:
        return False
    tried = subprocess.run(["strace", "-D", "-o", "/dev/null", "true"], capture_output=True)
    return tried.returncode == 0


pytestmark = pytest.mark.skipif(not _traceable(), reason="needs strace and the right to trace")


class Injected(Launch):
    """A daemon whose calls fail as strace is told; the tracer is a separate process."""

    def __init__(self, data_dir: Path, fault: str) -> None:
        super().__init__(data_dir, {}, (), SETTINGS)
        call = fault.split(":")[0]
        tracing = ("-D", "-f", "-q", "-o", "/dev/null", "-e", f"trace={call}", "-e")
        self.command = ("strace", *tracing, f"inject={fault}", *COMMAND)


def _write_until_it_fails(daemon: Daemon, first: int, most: int) -> tuple[int, int]:
    """Return the total of (acknowledged rows, sent rows), with ten rows per batch."""
    acknowledged = sent = first
    with fl.connect(daemon.flight) as client:
        stream = Stream(client, path(TABLE), numbers(0, 1).schema)
        try:
            while sent < most:
                stream.send(numbers(sent, 10))
                sent += 10
                if stream.answer() is None:
                    break
                acknowledged = sent
            stream.close()
        except (pa.ArrowException, fl.FlightError):
            assert sent > acknowledged
    return acknowledged, sent


def _after(data_dir: Path) -> list[int]:
    with Launch(data_dir, {}, (), SETTINGS).start() as daemon, fl.connect(daemon.flight) as client:
        found = rows(client, TABLE)
        persist(client, TABLE)
        assert rows(client, TABLE) == found
        return found


@pytest.mark.parametrize("when", [2, 7, 31])
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_a_sync_that_fails_ends_the_daemon_and_nothing_is_lost(
    tmp_path: Path, error: str, when: int
) -> None:
    daemon = Injected(tmp_path / "data", f"fdatasync:error={error}:when={when}").start()
    with daemon:
        acknowledged, sent = _write_until_it_fails(daemon, 0, 100_000)
        assert daemon.wait() == EXIT_LOG_FAILED
    assert sent > acknowledged
    found = _after(tmp_path / "data")
    assert found == list(range(len(found)))
    assert acknowledged <= len(found) <= sent


@pytest.mark.parametrize("fault", ["error=ENOSPC:when=9", "error=EIO:when=9"])
def test_a_write_that_fails_is_refused_and_leaves_nothing_behind(
    tmp_path: Path, fault: str
) -> None:
    acknowledged = sent = 0
    with Injected(tmp_path / "data", f"pwritev,pwritev2:{fault}").start() as daemon:
        for _ in itertools.repeat(None, 50):
            acknowledged, sent = _write_until_it_fails(daemon, acknowledged, acknowledged + 400)
            if sent > acknowledged:
                break
        daemon.kill()
    assert sent > acknowledged, "no write has failed"
    found = _after(tmp_path / "data")
    assert found == list(range(len(found)))
    assert acknowledged <= len(found) <= sent
