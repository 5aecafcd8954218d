"""A message wakes only the thread that waits for it, and no other gRPC thread first."""

from __future__ import annotations

from pathlib import Path

import pyarrow.flight as fl

from tests.drivers.daemon import Daemon
from tests.drivers.small_rows import SCHEMA, row
from tests.drivers.wire import Stream, path

WRITES = 300
WAKES = 2 * WRITES
"""Other reading threads would cost three wakes per write; timers cause a few."""


def _wakes(pid: int) -> int:
    """The number of times that threads of gRPC's event engine slept and were woken."""
    count = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        facts = dict(
            line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if line
        )
        if facts["Name"] == "event_engine":
            count += int(facts["voluntary_ctxt_switches"])
    return count


def _wakes_for_writes(daemon: Daemon) -> int:
    """The number of wakes for the writes of a client that waits for each answer."""
    with fl.connect(daemon.flight) as client, Stream(client, path(("n", "t")), SCHEMA) as stream:
        stream.send(row(0))
        assert stream.answer()
        before = _wakes(daemon.pid)
        for number in range(1, WRITES):
            stream.send(row(number))
            assert stream.answer()
        return _wakes(daemon.pid) - before


def test_threads_that_wait_for_messages_read_them(tmp_path: Path) -> None:
    with Daemon.start(tmp_path / "d", environment={"GRPC_VERBOSITY": "INFO"}) as daemon:
        assert _wakes_for_writes(daemon) < WAKES
        # gRPC would log an experiment that it does not know.
        assert "experiment" not in daemon.stderr_file.read_text()


def test_an_operator_may_choose_otherwise(tmp_path: Path) -> None:
    with Daemon.start(
        tmp_path / "d", environment={"GRPC_EXPERIMENTS": "event_engine_listener"}
    ) as daemon:
        assert _wakes_for_writes(daemon) > WAKES
