"""Processes of `ingester` that start with all modules imported; imports dominate the start time.

    process = warm().popen(["ingester", "serve", …], environment, cwd, stderr)

A helper process (``forking``) imports all modules and then forks for each start. Each forked
process is reparented to this one, which is a Linux subreaper, so it is killed and waited for as
if it had been started here. It then runs as ``python -m ingester``, or ``python -m`` of another
module.

The demo, the README's tour, the benchmarks and the campaigns use cold starts with a new
interpreter.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, Protocol

from ingester.memory.heap_settings import heap_tunables

ROOT = Path(__file__).resolve().parents[2]
CODE = "from tests.drivers.forking import serve; serve({descriptor})"
_SUBREAPER = 36


class Process(Protocol):
    """The part of ``subprocess.Popen`` that tests use."""

    pid: int
    returncode: int | None

    @property
    def stdout(self) -> IO[bytes] | None:
        """The reading end of its standard output."""

    def poll(self) -> int | None:
        """Return the exit code if the process has ended."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process to end and return the exit code."""

    def send_signal(self, sig: int) -> None:
        """Send a signal if the process runs."""

    def kill(self) -> None:
        """SIGKILL."""

    def terminate(self) -> None:
        """SIGTERM."""

    def communicate(self) -> tuple[Any, Any]:
        """Read its output to the end, and wait."""


class _Forked:
    """A child that the helper process has forked."""

    def __init__(self, pid: int, stdout: BinaryIO | None = None) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._stdout = stdout
        self._ended = os.pidfd_open(pid)

    @property
    def stdout(self) -> IO[bytes] | None:
        return self._stdout

    def poll(self) -> int | None:
        if self.returncode is None:
            self._reap(os.WNOHANG)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None and timeout is not None:
            give_up_at = time.monotonic() + timeout
            poll = _poller(self._ended)
            while self.poll() is None:
                left_s = give_up_at - time.monotonic()
                if left_s <= 0:
                    raise subprocess.TimeoutExpired("ingester", timeout)
                poll.poll(left_s * 1000)
        if self.returncode is None:
            self._reap(0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def communicate(self) -> tuple[bytes, None]:
        assert self._stdout is not None
        with self._stdout:
            said = self._stdout.read()
        self.wait()
        return said, None

    def _reap(self, options: int) -> None:
        pid, status = os.waitpid(self.pid, options)
        if pid:
            self.returncode = os.waitstatus_to_exitcode(status)
            os.close(self._ended)


def _poller(descriptor: int) -> select.poll:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return poll


class Warm:
    """The helper process, seen from this process."""

    def __init__(self, helper: subprocess.Popen[bytes], ours: socket.socket) -> None:
        self._helper = helper
        self._ours = ours
        self._lock = threading.Lock()

    def popen(
        self, arguments: Sequence[str], environment: Mapping[str, str], cwd: Path, stderr: Any
    ) -> _Forked:
        """Run ``python -m`` with these arguments, a module first; standard output is a pipe."""
        reading, writing = os.pipe()
        with open(os.devnull, "rb") as nothing:
            pid = self._fork(
                arguments, environment, cwd, (nothing.fileno(), writing, stderr.fileno())
            )
        os.close(writing)
        return _Forked(pid, os.fdopen(reading, "rb"))

    def run(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        cwd: Path,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run ``ingester`` with these arguments and return the finished command with its output."""
        with (
            _temporary(stdin) as given,
            _temporary() as out,
            _temporary() as err,
        ):
            command = ["ingester", *arguments]
            process = _Forked(self._fork(command, environment, cwd, (given, out, err)))
            try:
                code = process.wait(timeout_s)
            finally:
                process.kill()
            return subprocess.CompletedProcess([*arguments], code, _all(out), _all(err))

    def on_terminal(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        cwd: Path,
        timeout_s: float = 60.0,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command on a terminal of 200 columns; output and errors are combined."""
        ours, theirs = os.openpty()
        try:
            tty.setraw(theirs)
            termios.tcsetwinsize(theirs, (50, 200))
            said: list[bytes] = []
            reader = threading.Thread(target=_drain, args=(ours, said))
            reader.start()
            try:
                command = ["ingester", *arguments]
                process = _Forked(self._fork(command, environment, cwd, (theirs, theirs, theirs)))
            finally:
                # The reader ends when no process holds the other end.
                os.close(theirs)
            try:
                code = process.wait(timeout_s)
            finally:
                process.kill()
                reader.join()
        finally:
            os.close(ours)
        return subprocess.CompletedProcess([*arguments], code, b"".join(said), b"")

    def _fork(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        cwd: Path,
        streams: tuple[int, int, int],
    ) -> int:
        order = {
            "arguments": [*arguments],
            "environment": {**environment},
            "cwd": str(cwd),
            "parent": os.getpid(),
        }
        with self._lock:
            socket.send_fds(self._ours, [json.dumps(order).encode()], streams)
            return int(self._ours.recv(64))

    def close(self) -> None:
        """End the helper; the processes it forked continue."""
        self._ours.close()
        self._helper.wait()


@functools.cache
def warm() -> Warm:
    """Return this process's helper, which starts on first use."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot become a subreaper")
    # Message boundaries are kept, so that one order is read whole.
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    tunables = heap_tunables(os.environ)
    with theirs:
        helper = subprocess.Popen(
            [
                sys.executable,
                "-X",
                "faulthandler",  # a process that ends by SIGABRT prints its stacks
                "-c",
                f"from tests.drivers.forking import serve; serve({theirs.fileno()})",
            ],
            pass_fds=[theirs.fileno()],
            cwd=ROOT,
            env={**os.environ, "GLIBC_TUNABLES": tunables},
        )
    started = Warm(helper, ours)
    atexit.register(started.close)
    return started


@contextmanager
def _temporary(content: bytes = b"") -> Iterator[int]:
    descriptor = os.memfd_create("stream")
    try:
        os.write(descriptor, content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


def _drain(terminal: int, said: list[bytes]) -> None:
    with suppress(OSError):  # EIO: the other end is closed
        while piece := os.read(terminal, 1 << 16):
            said.append(piece)


def _all(descriptor: int) -> bytes:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, size, 0)
