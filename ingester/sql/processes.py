"""The worker processes: started on first use, kept warm, replaced after a failure.

A query has a process for itself. A process whose query was cut short is killed, which needs nothing
of it, and its folder is deleted; the next query starts another one (about half a second).
Thread-safe.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
from itertools import count
from pathlib import Path

import msgspec

import ingester
from ingester.errors import NotAvailable, Stopping, TooManyStreams, limit_facts
from ingester.sql.wire import Channel, WorkerLimits

WAIT_S = 10.0
"""How long a query waits for a process."""


class Worker:
    """One process."""

    def __init__(self, limits: WorkerLimits) -> None:
        """Start it; it becomes ready by itself. Raises OSError."""
        self._worn_bytes = limits.worn_bytes
        self.folder = Path(limits.spill_folder)
        self.folder.mkdir(parents=True)
        ours, theirs = socket.socketpair()
        arguments = [str(theirs.fileno()), msgspec.json.encode(limits).decode()]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ingester.sql.worker", *arguments],
                # Its end tells the worker that the daemon has ended.
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd=self.folder,
                env=_environment(self.folder),
            )
        except BaseException:
            ours.close()
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        finally:
            theirs.close()
        self.channel = Channel(ours)
        self.used_at = time.monotonic()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def kill(self) -> None:
        """End the process at once. Thread-safe; the channel of a waiting thread is closed."""
        self._process.kill()

    def leave(self, wait_s: float = 0.0) -> int:
        """Kill the process after a wait, delete its folder; return its exit code."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(wait_s)
        self._process.kill()
        code = self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self.channel.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        return code

    def is_alive(self) -> bool:
        """Return whether the process still runs."""
        return self._process.poll() is None

    def is_worn(self) -> bool:
        """Return whether earlier queries have left too little memory for the next one."""
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[5])
        except OSError:
            return False
        return pages * resource.getpagesize() > self._worn_bytes


class Workers:
    """All processes of a daemon.

    Args:
        limits: of each process; the folder is the parent of their folders.
        most: the number of processes.
        idle_s: how long an unused process is kept.
    """

    def __init__(self, limits: WorkerLimits, most: int, idle_s: float) -> None:
        self._limits = limits
        self._most = most
        self._idle_s = idle_s
        self._idle: list[Worker] = []
        self._taken = 0
        self.waiting = 0
        """Number of queries that wait for a process."""
        self._closed = False
        self._free = threading.Condition()
        self._numbers = count()
        shutil.rmtree(limits.spill_folder, ignore_errors=True)

    @property
    def alive(self) -> int:
        """Number of processes."""
        return self._taken + len(self._idle)

    def spilled_bytes(self) -> int:
        """Return the bytes on disk of all running queries."""
        found = 0
        for path in Path(self._limits.spill_folder).glob("*/*"):
            with contextlib.suppress(OSError):
                found += path.stat().st_size
        return found

    def take(self) -> Worker:
        """Return a process for one query.

        Raises:
            TooManyStreams: all are busy for ten seconds.
            Stopping: the daemon is stopping.
            NotAvailable: no process can be started.
        """
        with self._free:
            self.waiting += 1
            try:
                self._free.wait_for(lambda: self._closed or self._taken < self._most, WAIT_S)
            finally:
                self.waiting -= 1
            if self._closed:
                raise Stopping("the daemon is stopping", retry_after_s=1.0)
            if self._taken >= self._most:
                raise TooManyStreams(
                    f"{self._most} SQL queries are running, as many as sql.workers allows",
                    retry_after_s=1.0,
                    details=limit_facts("sql.workers", self._most, self._taken + 1),
                )
            self._taken += 1
            found = self._idle.pop() if self._idle else None
        if found is not None and found.is_alive():
            return found
        try:
            if found is not None:
                found.leave()
            return self._start()
        except BaseException:
            self._leave()
            raise

    def give(self, worker: Worker) -> None:
        """Return a process whose query has ended completely."""
        worker.used_at = time.monotonic()
        worn = worker.is_worn()
        with self._free:
            if not (self._closed or worn):
                self._taken -= 1
                self._idle.append(worker)
                self._free.notify()
                return
        self.discard(worker)

    def discard(self, worker: Worker, wait_s: float = 0.0) -> int:
        """End a process whose query was cut short; return its exit code.

        Args:
            wait_s: how long it may take to end by itself.
        """
        try:
            return worker.leave(wait_s)
        finally:
            self._leave()

    def drop_idle(self) -> None:
        """End processes that were not used for a while."""
        before = time.monotonic() - self._idle_s
        with self._free:
            old = [worker for worker in self._idle if worker.used_at < before]
            self._idle = [worker for worker in self._idle if worker.used_at >= before]
        for worker in old:
            worker.leave()

    def close(self) -> None:
        """End the idle processes and start no more."""
        with self._free:
            self._closed = True
            idle, self._idle = self._idle, []
            self._free.notify_all()
        for worker in idle:
            worker.leave()

    def _start(self) -> Worker:
        parent = Path(self._limits.spill_folder)
        folder = str(parent / str(next(self._numbers)))
        try:
            parent.mkdir(exist_ok=True)
            # The log may be on the same disk.
            spill = min(self._limits.spill, shutil.disk_usage(parent).free // 2)
            own = msgspec.structs.replace(self._limits, spill_folder=folder, spill=spill)
            return Worker(own)
        except OSError as exc:
            raise NotAvailable(f"no process for SQL can be started: {exc}") from exc

    def _leave(self) -> None:
        with self._free:
            self._taken -= 1
            self._free.notify()


def _environment(folder: Path) -> dict[str, str]:
    """Return the variables of a worker: none of the daemon's, which may have secrets."""
    return {
        "PYTHONPATH": str(Path(ingester.__file__).parents[1]),
        "PATH": os.defpath,
        "HOME": str(folder),
        "LC_ALL": "C.UTF-8",
        # Others reserve address space, which counts against the limit.
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        # DuckDB's allocator would keep all address space for its own next query.
        "DUCKDB_JE_MALLOC_CONF": "retain:false",
    }
