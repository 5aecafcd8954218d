"""Processes of `ingester` that find everything imported: a start takes longest to import.

    process = warm().popen(["serve", …], environment, cwd, stderr)

A helper imports all modules and then forks for each start. What it forks is handed to this process
(it becomes its child, as Linux lets "subreapers" have them), so it is killed and waited for as if
it had been started here; from its first line on it runs what ``python -m ingester`` would.

Cold starts, with an interpreter of their own, are what the demo, the README's tour, the benchmarks
and the campaigns see.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, NoReturn, Protocol

ROOT = Path(__file__).resolve().parent.parent
_SUBREAPER = 36
_PARENT_DEATH_SIGNAL = 1
_SHELL_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGHUP)
_MOST_BYTES = 1 << 20


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
        """``python -m ingester`` with these arguments; its standard output is a pipe."""
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
        """The finished command, with what it said."""
        with (
            _temporary(stdin) as given,
            _temporary() as out,
            _temporary() as err,
        ):
            process = _Forked(self._fork(arguments, environment, cwd, (given, out, err)))
            try:
                code = process.wait(timeout_s)
            finally:
                process.kill()
            return subprocess.CompletedProcess([*arguments], code, _all(out), _all(err))

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
    tunables = os.environ.get("GLIBC_TUNABLES") or "glibc.malloc.hugetlb=1"
    with theirs:
        helper = subprocess.Popen(
            [sys.executable, "-c", f"from tests.warm import serve; serve({theirs.fileno()})"],
            pass_fds=[theirs.fileno()],
            cwd=ROOT,
            env={**os.environ, "GLIBC_TUNABLES": tunables},
        )
    started = Warm(helper, ours)
    atexit.register(started.close)
    return started


# The helper


def serve(descriptor: int) -> None:
    """Import everything, then fork for every order until nobody can give one any more."""
    _import_all()
    with socket.socket(fileno=descriptor) as orders:
        while True:
            said, streams, _, _ = socket.recv_fds(orders, _MOST_BYTES, 3)
            if not said:
                return
            told, tell = os.pipe()
            middle = os.fork()
            if not middle:
                # Its own child is nobody's when it ends, and so goes to the subreaper.
                pid = os.fork()
                if not pid:
                    os.close(told)
                    os.close(tell)
                    orders.close()
                    _become(json.loads(said), streams)
                os.write(tell, str(pid).encode())
                os._exit(0)
            os.waitpid(middle, 0)
            # Not before: until then it is not the subreaper's to wait for.
            orders.send(os.read(told, 64))
            os.close(told)
            os.close(tell)
            for each in streams:
                os.close(each)


def _import_all() -> None:
    from ingester.allocator import choose_allocator

    choose_allocator()
    # Not `ingester.cli.app`: what it imports itself it imports in the environment of the command.
    for name in ("typer._adapters", "s3fs", "pyarrow.flight", "pyarrow.parquet", "pyarrow.csv"):
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    for name in ("daemon", "client", "adopting", "config_sources"):
        importlib.import_module(f"ingester.{name}")
    for name in ("serving", "manifest_commands", "input_files", "output_formats", "log_tools"):
        importlib.import_module(f"ingester.cli.{name}")
    # No collection of a child walks them: they are nobody's garbage.
    gc.collect()
    gc.freeze()


def _become(order: dict[str, Any], streams: Sequence[int]) -> NoReturn:
    """Run the command in this process, which is new, and end with its exit code."""
    code = 70
    try:
        _end_with(order["parent"])
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        for number in _SHELL_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        os.environ.clear()
        os.environ.update(order["environment"])
        os.chdir(order["cwd"])
        sys.argv = ["ingester", *order["arguments"]]
        from ingester.cli import main

        try:
            main(order["arguments"])
            code = 0
        except SystemExit as exc:
            code = exc.code if isinstance(exc.code, int) else int(exc.code is not None)
        except BaseException:
            traceback.print_exc()
            code = 1
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _end_with(parent: int) -> None:
    """Have this process killed when the process that ordered it ends, however that does."""
    give_up_at = time.monotonic() + 10
    # Until whoever forked it has ended, its parent is another.
    while os.getppid() != parent:
        if time.monotonic() > give_up_at:
            os._exit(71)
        os.sched_yield()
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(71)


@contextmanager
def _temporary(content: bytes = b"") -> Iterator[int]:
    descriptor = os.memfd_create("stream")
    try:
        os.write(descriptor, content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


def _all(descriptor: int) -> bytes:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, size, 0)
