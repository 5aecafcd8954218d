"""Processes of `ingester` that find everything imported: a start takes longest to import.

    process = warm().popen(["ingester", "serve", …], environment, cwd, stderr)

A helper (``forking``) imports all modules and then forks for each start. What it forks is
handed to this process (it becomes its child, as Linux lets "subreapers" have them), so it is killed
and waited for as if it had been started here; from its first line on it runs what ``python -m
ingester``, or ``python -m`` another module, would.

Cold starts, with an interpreter of their own, are what the demo, the README's tour, the benchmarks
and the campaigns see.
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
    """What tests use of ``subprocess.Popen``."""

    pid: int
    returncode: int | None

    @property
    def stdout(self) -> IO[bytes] | None:
        """The reading end of its standard output."""

    def poll(self) -> int | None:
        """The exit code, if it has ended."""

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, when it has ended."""

    def send_signal(self, sig: int) -> None:
        """Send it, if it runs."""

    def kill(self) -> None:
        """SIGKILL."""

    def terminate(self) -> None:
        """SIGTERM."""

    def communicate(self) -> tuple[Any, Any]:
        """Read its output to the end, and wait."""


class _Forked:
    """A child that somebody else has forked for us."""

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
    """The helper, from this side."""

    def __init__(self, helper: subprocess.Popen[bytes], ours: socket.socket) -> None:
        self._helper = helper
        self._ours = ours
        self._lock = threading.Lock()

    def popen(
        self, arguments: Sequence[str], environment: Mapping[str, str], cwd: Path, stderr: Any
    ) -> _Forked:
        """``python -m`` with these arguments, a module first; its standard output is a pipe."""
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
        """The finished command, ``ingester`` with these arguments, with what it said."""
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
        """The finished command, whose output and errors both went to one terminal, 200 wide."""
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
                # The reader ends when nobody has the other side.
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
        """End the helper; what it forked goes on."""
        self._ours.close()
        self._helper.wait()


@functools.cache
def warm() -> Warm:
    """This process's helper, started when it is first asked for."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot become a subreaper")
    # Messages, so that one is read whole.
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    tunables = heap_tunables(os.environ)
    with theirs:
        helper = subprocess.Popen(
            [
                sys.executable,
                "-X",
                "faulthandler",  # who ends by SIGABRT says where
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
    with suppress(OSError):  # EIO: the other side is closed
        while piece := os.read(terminal, 1 << 16):
            said.append(piece)


def _all(descriptor: int) -> bytes:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, size, 0)
