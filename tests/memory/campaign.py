"""Everything that makes a daemon hold memory, at once, beside a bystander.

    python -m tests.memory.campaign [--seconds 60] [--limit 512MiB] [--threads 3]

The store goes away in the second third. Prints one JSON line: the peak of resident memory beside
what is promised, what the loads heard, and what the bystander waited. Ends with 1 where the daemon
was killed, or a row of the bystander's is missing or there twice.
"""

from __future__ import annotations

import argparse
import json
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
from tests.drivers.daemon import ROOT, Daemon, Launch
from tests.drivers.wire import ARROW_AND_FLIGHT, http, numbers, put, rows
from tests.memory.control_group import killed_beyond
from tests.memory.loads import LOADS

BESIDE_BYTES = 768 << 20
"""What the daemon may take beside ``memory.limit``: docs/limits.md promises it."""
BYSTANDER = ("by", "stander")


class Plan(NamedTuple):
    """What is done to a daemon."""

    seconds: float = 60.0
    limit: str = "512MiB"
    threads: int = 3
    kinds: Sequence[str] = tuple(LOADS)


def campaign(folder: Path, plan: Plan) -> dict[str, Any]:
    """Run it once; give what it has found."""
    limit = plan.limit
    most_bytes = parse_size(limit) + BESIDE_BYTES
    with (
        Daemon.start(
            folder / "d",
            memory__limit=limit,
            persist__max_age="2s",
        ) as daemon,
        killed_beyond(daemon, most_bytes) as watched,
    ):
        waits: list[float] = []
        over = threading.Event()
        bystander = threading.Thread(target=_write, args=(daemon, waits, over))
        bystander.start()
        heard = _loads(daemon, plan)
        over.set()
        bystander.join()
        alive = daemon.process.poll() is None
        found = _rows(daemon) if alive else []
        health = http(f"{daemon.http}/health/live")[0] if alive else 0
    waits.sort()
    return {
        "killed_by": watched.by,
        "alive": alive,
        "health": health,
        "peak_bytes": watched.peak_bytes,
        "most_bytes": most_bytes,
        "complete": found == list(range(len(waits))),
        "writes": len(waits),
        "median_s": round(waits[len(waits) // 2], 3) if waits else None,
        "worst_s": round(waits[-1], 3) if waits else None,
        "heard": heard,
    }


def _rows(daemon: Daemon) -> list[int]:
    with fl.connect(daemon.flight) as client:
        return rows(client, BYSTANDER)


def _write(daemon: Daemon, waits: list[float], over: threading.Event) -> None:
    """Write row after row, each until it is there."""
    while not over.wait(0.05):
        began = time.monotonic()
        while daemon.process.poll() is None:
            with suppress(*ARROW_AND_FLIGHT), fl.connect(daemon.flight) as client:
                put(
                    client,
                    BYSTANDER,
                    numbers(len(waits), 1),
                    origin="bystander",
                    metadata=[{"sequence": len(waits) + 1}],
                )
                waits.append(time.monotonic() - began)
                break
            time.sleep(0.05)
        else:
            return


def _loads(daemon: Daemon, plan: Plan) -> dict[str, Any]:
    seconds, threads = plan.seconds, plan.threads
    endpoints = {kind: daemon.http if kind == "metrics" else daemon.flight for kind in plan.kinds}
    loads = {
        kind: subprocess.Popen(
            [sys.executable, "-m", "tests.memory.loads", to, str(seconds), str(threads), kind],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for kind, to in endpoints.items()
    }
    try:
        time.sleep(seconds / 3)
        with _store_away(daemon.data_dir / "store"):
            time.sleep(seconds / 3)
        return {kind: json.loads(load.communicate()[0] or b"{}") for kind, load in loads.items()}
    finally:
        for load in loads.values():
            load.kill()
            load.wait()


@contextmanager
def _store_away(store: Path) -> Iterator[None]:
    """The folder of the store is a file for a while."""
    aside = store.with_name("aside")
    store.rename(aside)
    store.write_text("")
    try:
        yield
    finally:
        store.unlink()
        aside.rename(store)


def main() -> None:
    """Run the campaign that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--limit", default="512MiB")
    parser.add_argument("--threads", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="memory-") as folder:
        Launch.warm = False  # the daemon's memory is laid out when it starts
        plan = Plan(options.seconds, options.limit, options.threads)
        found = campaign(Path(folder), plan)
    print(json.dumps(found))
    raise SystemExit(0 if found["alive"] and found["complete"] else 1)


if __name__ == "__main__":
    main()
