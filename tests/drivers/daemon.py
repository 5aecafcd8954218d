"""A real daemon in a process of its own, started as an operator starts it.

    with Daemon.start(tmp_path / "d", persist__max_age="2s", auto_create="false") as daemon:
        client = pyarrow.flight.connect(daemon.flight)
        daemon.kill()                      # kill -9
        daemon = daemon.again()            # same folder, same settings
        assert daemon.terminate() == 0     # SIGTERM, and the exit code

Settings are given as in the environment: ``persist__max_age`` is ``INGESTER_PERSIST__MAX_AGE``.
The daemon listens on free loopback ports. ``stderr_file`` has its log across all restarts.
Leaving the ``with`` block kills a daemon that still runs.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.drivers.warm import Process, warm

COMMAND = [sys.executable, "-m", "ingester", "serve"]
ROOT = Path(__file__).resolve().parents[2]
READY_WITHIN_S = 60.0
_started: weakref.WeakSet[Daemon] = weakref.WeakSet()


class DaemonEnded(Exception):
    """Raised when a daemon ends or stays silent before it is ready.

    ``code`` is its exit code, if any.
    """

    def __init__(self, message: str, code: int | None, stderr: str) -> None:
        super().__init__(f"{message}\n{stderr[-4000:]}")
        self.code = code
        self.stderr = stderr


class Daemon:
    """A running daemon; made by :meth:`start`."""

    def __init__(self, process: Process, launch: Launch, ready: dict[str, Any]) -> None:
        self.process = process
        self.launch = launch
        self.ready = ready
        """The fields of the ready line: ``flight``, ``http``, ``ingester_id``, ``epoch``, …"""
        self.flight: str = ready["flight"]
        self.http: str = ready["http"]
        self.pid: int = process.pid
        _started.add(self)

    @classmethod
    def start(
        cls,
        data_dir: Path,
        *,
        environment: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        **settings: object,
    ) -> Daemon:
        """Start a daemon and return when it accepts writes.

        Args:
            environment: Additional variables, such as ``S3Server.environment``.
            arguments: Additional arguments of ``ingester serve``.
            settings: ``section__key=value``, as in the environment.

        Raises:
            DaemonEnded: The daemon ended before it was ready.
        """
        return Launch(data_dir, dict(environment or {}), tuple(arguments), settings).start()

    @property
    def data_dir(self) -> Path:
        """The folder with the daemon's log."""
        return self.launch.data_dir

    @property
    def stderr_file(self) -> Path:
        """Standard error of this daemon and of earlier ones in the same folder."""
        return self.launch.stderr_file

    def again(self, **changed: object) -> Daemon:
        """Start a new process with the same folder and settings, except those in ``changed``."""
        settings = {**self.launch.settings, **changed}
        return self.launch._replace(settings=settings).start()

    def kill(self) -> None:
        """Send SIGKILL and wait for the process to end. A second call is a no-op."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def terminate(self, timeout_s: float = 90.0) -> int:
        """Send SIGTERM, wait, and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def wait(self, timeout_s: float = 90.0) -> int:
        """Wait until the daemon ends by itself and return the exit code."""
        try:
            return self.process.wait(timeout_s)
        finally:
            self.kill()

    @property
    def resident_bytes(self) -> int:
        """Resident memory of the process."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class Launch:
    """The command, folder and environment that start a daemon."""

    root = ROOT
    """The folder that the daemon's code is imported from."""
    command: Sequence[str] = COMMAND
    warm = False
    """Whether the process is forked with all modules imported; see :mod:`tests.drivers.warm`."""

    def __init__(
        self,
        data_dir: Path,
        environment: dict[str, str],
        arguments: tuple[str, ...],
        settings: dict[str, object],
    ) -> None:
        self.data_dir = data_dir
        self.environment = environment
        self.arguments = arguments
        self.settings = settings

    def _replace(self, *, settings: dict[str, object]) -> Launch:
        return Launch(self.data_dir, self.environment, self.arguments, settings)

    @property
    def stderr_file(self) -> Path:
        """A file next to the folder, so that the folder holds only the daemon's own files."""
        return self.data_dir.with_name(self.data_dir.name + ".stderr")

    def start(self) -> Daemon:
        """See :meth:`Daemon.start`."""
        process = self.spawn()
        try:
            return Daemon(process, self, self._ready_line(process))
        except BaseException:
            process.kill()
            process.communicate()
            raise

    def spawn(self) -> Process:
        """Start the process; its standard output is a pipe."""
        names = {f"INGESTER_{key.upper()}": str(value) for key, value in self.settings.items()}
        kept = {k: v for k, v in os.environ.items() if not k.startswith("INGESTER_")}
        self.data_dir.parent.mkdir(parents=True, exist_ok=True)
        arguments = ["--data-dir", str(self.data_dir), *_PORTS, *self.arguments]
        environment = {**kept, "INGESTER_ID": "tested", **self.environment, **names}
        # The interpreter reads these variables at its start.
        cold = any(
            name.startswith(_FOR_STARTS) and name != "PYTHONPATH" for name in self.environment
        )
        with self.stderr_file.open("ab") as stderr:
            python, option, *rest = self.command
            modules = (python, option) == (sys.executable, "-m")
            if self.warm and modules and self.root == ROOT and not cold:
                return warm().popen([*rest, *arguments], environment, self.root, stderr)
            return subprocess.Popen(
                [*self.command, *arguments],
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=self.root,
                env=environment,
            )

    def _ready_line(self, process: Process) -> dict[str, Any]:
        assert process.stdout is not None
        line = b""
        give_up_at = time.monotonic() + READY_WITHIN_S
        while not line.endswith(b"\n"):
            left_s = give_up_at - time.monotonic()
            if left_s <= 0 or not select.select([process.stdout], [], [], left_s)[0]:
                raise self._ended(f"not ready within {READY_WITHIN_S:g} s", None)
            piece = os.read(process.stdout.fileno(), 65536)
            if not piece:
                raise self._ended("ended before it was ready", process.wait())
            line += piece
        ready: dict[str, Any] = json.loads(line)
        return ready

    def _ended(self, message: str, code: int | None) -> DaemonEnded:
        stderr = self.stderr_file.read_text(errors="replace")
        return DaemonEnded(f"{message} (exit code {code})", code, stderr)


_FOR_STARTS = ("ARROW_", "GLIBC_", "LD_", "MALLOC_", "PYTHON")
_PORTS = ("--flight", "127.0.0.1:0", "--http", "127.0.0.1:0")


def end_hanging_daemons() -> None:
    """Make all running daemons dump their thread stacks and end, so that blocked tests continue.

    The stacks are in the daemons' files of standard error and are printed here.
    """
    for daemon in list(_started):
        if daemon.process.poll() is None:
            ended = os.pidfd_open(daemon.pid)  # the test's thread waits for the process
            daemon.process.send_signal(signal.SIGABRT)
            select.select([ended], [], [], 10)
            os.close(ended)
            told = daemon.stderr_file.read_text(errors="replace")[-20_000:]
            print(f"hanging: {daemon.stderr_file}\n{told}", file=sys.stderr)
