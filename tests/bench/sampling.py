"""Samples a process, and deletes a folder's old data files, while a client writes for minutes.

One thread wakes at an interval and ends with its ``with`` block. It reads ``/proc`` and the
daemon's metrics, and deletes data files that a running load has left.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tests.bench.effort import cpu_seconds
from tests.bench.requests import metric
from tests.drivers.daemon import Daemon

_PIECE_BYTES = 2 << 20
_PIECE_PAUSE_S = 0.005


@dataclass(frozen=True, slots=True)
class Sample:
    """A daemon's state: ``at`` in seconds of the monotonic clock, the rest since its start."""

    at: float
    resident_bytes: int
    cpu_s: float
    acknowledged_rows: float
    persisted_rows: float


class Every:
    """Calls a function at an interval, and at the start and the end of the ``with`` block."""

    def __init__(self, seconds: float, call: Callable[[], None]) -> None:
        self._seconds = seconds
        self._call = call
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            while not self._over.wait(self._seconds):
                self._call()
        except BaseException as exc:
            self._failure = exc

    def __enter__(self) -> Every:
        self._call()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        if error is None:
            if self._failure is not None:
                raise self._failure
            self._call()


class Watch:
    """Samples of a daemon; ``take`` adds one."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self.samples: list[Sample] = []

    def take(self) -> None:
        daemon = self._daemon
        sample = Sample(
            at=time.monotonic(),
            resident_bytes=daemon.resident_bytes,
            cpu_s=cpu_seconds(daemon.pid),
            acknowledged_rows=metric(daemon, "ingester_rows_total"),
            persisted_rows=metric(daemon, "ingester_persisted_rows_total"),
        )
        self.samples.append(sample)


def delete_data_files(folder: Path, older_than_s: float) -> None:
    """Delete Parquet files that are no longer read: minutes of load may exceed the disk.

    Files are truncated in pieces. On file systems that return freed blocks immediately, deleting
    a large file at once would block all writes and distort the measurement.
    """
    limit = time.time() - older_than_s
    for path in folder.rglob("*.parquet"):
        try:
            if path.stat().st_mtime >= limit:
                continue
            for size in range(path.stat().st_size - _PIECE_BYTES, 0, -_PIECE_BYTES):
                os.truncate(path, size)
                time.sleep(_PIECE_PAUSE_S)
            path.unlink()
        except FileNotFoundError:
            # The daemon renamed or removed it meanwhile.
            continue


class PeakMemory:
    """The peak resident memory of a process since this object was created."""

    def __init__(self, pid: int) -> None:
        self._proc = Path(f"/proc/{pid}")
        # 5: "reset the peak resident set size", proc(5).
        (self._proc / "clear_refs").write_text("5")

    @property
    def bytes(self) -> int:
        status = (self._proc / "status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
