"""A real daemon in a process of its own, started as an operator starts it.

    with Daemon.start(tmp_path / "d", persist__max_age="2s", auto_create="false") as daemon:
        client = pyarrow.flight.connect(daemon.flight)
        daemon.kill()                      # kill -9
        daemon = daemon.again()            # same folder, same settings
        assert daemon.terminate() == 0     # SIGTERM, and the exit code

Settings are those of the environment: ``persist__max_age`` is ``INGESTER_PERSIST__MAX_AGE``. Ports
are free ones, of the loopback. What the daemon logs is in ``stderr_file``, over all restarts.
Leaving the ``with`` kills what still runs.
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
    """It ended, or said nothing, before it was ready. ``code`` is its exit code, if it has one."""

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
        """The line that it printed: ``flight``, ``http``, ``ingester_id``, ``epoch``, …"""
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
        """A daemon that takes writes by the time this returns.

        Args:
            environment: further variables, such as ``S3Server.environment``.
            arguments: further ones of ``ingester serve``.
            settings: ``section__key=value``, as in the environment.

        Raises:
            DaemonEnded: it ended before it was ready.
        """
        return Launch(data_dir, dict(environment or {}), tuple(arguments), settings).start()

    @property
    def data_dir(self) -> Path:
        """Where its log is."""
        return self.launch.data_dir

    @property
    def stderr_file(self) -> Path:
        """What it has logged, and the daemons before it in the same folder."""
        return self.launch.stderr_file

    def again(self, **changed: object) -> Daemon:
        """A new process with the same folder and settings, less those that ``changed``."""
        settings = {**self.launch.settings, **changed}
        return self.launch._replace(settings=settings).start()

    def kill(self) -> None:
        """``kill -9``; returns when the process is gone. Twice is fine."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def terminate(self, timeout_s: float = 90.0) -> int:
        """SIGTERM; the exit code, when it has ended."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def wait(self, timeout_s: float = 90.0) -> int:
        """The exit code, when it has ended by itself."""
        try:
            return self.process.wait(timeout_s)
        finally:
            self.kill()

    @property
    def resident_bytes(self) -> int:
        """Memory of the process that is in RAM."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class Launch:
    """How a daemon is started."""

    root = ROOT
    """Where its code is."""
    command: Sequence[str] = COMMAND
    warm = False
    """Whether a process begins with everything imported; see :mod:`tests.drivers.warm`."""

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
        """Beside the folder, so that the folder holds what the daemon put there."""
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
        """The process, just started. Its standard output is a pipe."""
        names = {f"INGESTER_{key.upper()}": str(value) for key, value in self.settings.items()}
        kept = {k: v for k, v in os.environ.items() if not k.startswith("INGESTER_")}
        self.data_dir.parent.mkdir(parents=True, exist_ok=True)
        arguments = ["--data-dir", str(self.data_dir), *_PORTS, *self.arguments]
        environment = {**kept, "INGESTER_ID": "tested", **self.environment, **names}
        # An interpreter reads these when it starts.
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
    """Have all daemons that run tell where their threads are, and end: who waits for them goes on.

    What they tell is in their files of standard error, and here.
    """
    for daemon in list(_started):
        if daemon.process.poll() is None:
            ended = os.pidfd_open(daemon.pid)  # the test's own thread waits for the process
            daemon.process.send_signal(signal.SIGABRT)
            select.select([ended], [], [], 10)
            os.close(ended)
            told = daemon.stderr_file.read_text(errors="replace")[-20_000:]
            print(f"hanging: {daemon.stderr_file}\n{told}", file=sys.stderr)
