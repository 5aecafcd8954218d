"""Shows that a daemon killed by its memory limit loses no acknowledged row and recovers at once.

    python -m tests.memory.campaign [--rounds 20] [--limit 256MiB] [--threads 3]

The daemon runs in a control group that is too small for the worst clients. In each round they
attack until the kernel kills it. Then they pause, the daemon is started again, as by a service
manager, and two writers must get an answer. The writers send row after row, each until it is
acknowledged. One has an origin: its rows must be stored exactly once. The other has none: a row
whose answer was lost may be stored twice.

It prints one JSON line. It exits with 1 if an acknowledged row is missing, a row of the origin
is stored twice, the kernel killed nothing, or a start took longer than ``READY_S``.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.flight as fl

from ingester.config.units import parse_size
from tests.drivers.daemon import COMMAND, ROOT, Daemon, Launch
from tests.drivers.ports import free_port
from tests.drivers.wire import ARROW_AND_FLIGHT, act, numbers, put, rows
from tests.memory.control_group import MemoryLimit, memory_limit
from tests.memory.loads import LOADS

BESIDE_BYTES = 300 << 20
"""The process's allowance beyond ``memory.limit``: too little for the loads (docs/sizing.md)."""
READY_S = 15.0
"""Time limit of a start on a machine that is still busy with the loads."""
KILLED_WITHIN_S = 60.0
ROWS = 10
"""Rows that each writer gets acknowledged between two attacks."""
ORIGIN = "bystander"
TABLES = {ORIGIN: ("by", "named"), None: ("by", "plain")}


class Plan(NamedTuple):
    """The parameters of a run."""

    rounds: int = 20
    limit: str = "256MiB"
    threads: int = 3
    kinds: Sequence[str] = tuple(LOADS)


class Writer:
    """Sends row after row, each until it is acknowledged."""

    def __init__(self, endpoint: str, origin: str | None) -> None:
        self._endpoint = endpoint
        self._origin = origin
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acknowledged = 0
        self.longest_s = 0.0
        self._thread.start()

    def end(self) -> None:
        """Stop after the current row."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.02):
            began = time.monotonic()
            while not self._write(self.acknowledged):
                time.sleep(0.05)
            self.acknowledged += 1
            self.longest_s = max(self.longest_s, time.monotonic() - began)

    def _write(self, number: int) -> bool:
        metadata = None if self._origin is None else [{"sequence": number + 1}]
        with suppress(*ARROW_AND_FLIGHT), fl.connect(self._endpoint) as client:
            table = TABLES[self._origin]
            put(client, table, numbers(number, 1), origin=self._origin, metadata=metadata)
            return True
        return False


def campaign(folder: Path, plan: Plan) -> dict[str, Any]:
    """Run all rounds and return the findings."""
    flight, http = (f"127.0.0.1:{free_port()}" for _ in range(2))
    settings: dict[str, object] = {"memory__limit": plan.limit, "persist__max_age": "2s"}
    launch = Launch(folder / "d", {}, ("--flight", flight, "--http", http), settings)
    limited = memory_limit("ingester-memory", parse_size(plan.limit) + BESIDE_BYTES)
    with limited as limit, _loads(flight, http, plan) as loads:
        launch.command = limit.command(COMMAND)
        daemon = launch.start()
        writers = [Writer(f"grpc://{flight}", origin) for origin in TABLES]
        ready_s: list[float] = []
        try:
            for _ in range(plan.rounds):
                _wait_for_rows(writers)
                _attack(daemon, limit, loads)
                began = time.monotonic()
                daemon = launch.start()
                ready_s.append(round(time.monotonic() - began, 2))
            _wait_for_rows(writers)
            for writer in writers:
                writer.end()
            found = _judge(daemon, writers)
        finally:
            for writer in writers:
                writer.end()
            daemon.kill()
        killed = plan.rounds if limit.kills is None else limit.kills
    return found | {"killed_by": limit.by, "killed": killed, "ready_s": ready_s}


def _attack(daemon: Daemon, limit: MemoryLimit, loads: Sequence[subprocess.Popen[bytes]]) -> None:
    """Let the loads run until the daemon has been killed."""
    give_up_at = time.monotonic() + KILLED_WITHIN_S
    with limit.watch(daemon):
        for load in loads:
            load.send_signal(signal.SIGCONT)
        while daemon.process.poll() is None and time.monotonic() < give_up_at:
            time.sleep(0.02)
        for load in loads:
            load.send_signal(signal.SIGSTOP)
    daemon.kill()


@contextmanager
def _loads(flight: str, http: str, plan: Plan) -> Iterator[Sequence[subprocess.Popen[bytes]]]:
    """Start the loads, paused."""
    loads = []
    try:
        for kind in plan.kinds:
            to = f"http://{http}" if kind == "metrics" else f"grpc://{flight}"
            command = [sys.executable, "-m", "tests.memory.loads", to, str(plan.threads), kind]
            loads.append(subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL))
            loads[-1].send_signal(signal.SIGSTOP)
        yield loads
    finally:
        for load in loads:
            load.kill()
            load.wait()


def _wait_for_rows(writers: Sequence[Writer]) -> None:
    """Return when each writer has had ``ROWS`` more rows acknowledged."""
    before = [writer.acknowledged for writer in writers]
    give_up_at = time.monotonic() + KILLED_WITHIN_S
    while any(
        writer.acknowledged < count + ROWS for writer, count in zip(writers, before, strict=True)
    ):
        if time.monotonic() > give_up_at:
            raise TimeoutError("the writers got no answer")
        time.sleep(0.02)


def _judge(daemon: Daemon, writers: Sequence[Writer]) -> dict[str, Any]:
    """Compare the rows with the acknowledged ones, buffered and then from files."""
    lost = doubled = 0
    with fl.connect(daemon.flight) as client:
        for _ in range(2):
            for writer, (origin, table) in zip(writers, TABLES.items(), strict=True):
                stored = rows(client, table)
                lost += len(set(range(writer.acknowledged)) - set(stored))
                doubled += (origin is not None) * (len(stored) - len(set(stored)))
            act(client, "persist", timeout_s=60.0)
    return {
        "acknowledged": {str(o): w.acknowledged for o, w in zip(TABLES, writers, strict=True)},
        "longest_wait_s": round(max(writer.longest_s for writer in writers), 1),
        "lost": lost,
        "doubled": doubled,
    }


def faults(found: dict[str, Any], rounds: int) -> list[str]:
    """Return the faults of a run."""
    wrong = []
    if found["lost"] or found["doubled"]:
        wrong.append(f"{found['lost']} acknowledged rows lost, {found['doubled']} stored twice")
    if found["killed"] < rounds:
        wrong.append(f"killed {found['killed']} times in {rounds} rounds")
    if max(found["ready_s"]) > READY_S:
        wrong.append(f"a start took {max(found['ready_s'])} s")
    return wrong


def main() -> None:
    """Run the campaign with the command line's parameters."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--limit", default="256MiB")
    parser.add_argument("--threads", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="memory-") as folder:
        plan = Plan(options.rounds, options.limit, options.threads)
        found = campaign(Path(folder), plan)
    wrong = faults(found, plan.rounds)
    print(json.dumps(found | {"faults": wrong}))
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
