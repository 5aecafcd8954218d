"""The demo's daemon: ``ingester serve`` as a child process with default settings.

It does not inherit settings from the environment, so the demo cannot write into a real store. It
does not receive Ctrl-C either: the demo ends it.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

READY_WITHIN_S = 60.0
STOP_WITHIN_S = 90.0
_SERVE = (sys.executable, "-m", "ingester", "serve")
_FREE_PORTS = ("--flight", "127.0.0.1:0", "--http", "127.0.0.1:0")


class DaemonFailed(Exception):
    """The daemon did not start or stop correctly. The message ends with its log."""


class DemoDaemon:
    """A running daemon, which is killed at the end of the ``with`` block."""

    def __init__(self, data_dir: Path, log_file: Path) -> None:
        self._log_file = log_file
        environment = {k: v for k, v in os.environ.items() if not k.startswith("INGESTER_")}
        with log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [*_SERVE, "--data-dir", str(data_dir), *_FREE_PORTS],
                stdout=subprocess.PIPE,
                stderr=log,
                env={**environment, "INGESTER_ID": "demo"},
                start_new_session=True,
            )
        try:
            ready = self._ready_line()
        except BaseException:
            self._end()
            raise
        self.endpoint: str = ready["flight"]
        self.http: str = ready["http"]

    def stop(self) -> None:
        """Stop the daemon with SIGTERM and wait for its end.

        Raises:
            DaemonFailed: Its exit code is not 0.
        """
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired as exc:
            raise self._failed(f"the daemon did not stop within {STOP_WITHIN_S:g} s") from exc
        if code != 0:
            raise self._failed(f"the daemon stopped with exit code {code}")

    def _ready_line(self) -> dict[str, Any]:
        pipe = self._process.stdout
        assert pipe is not None
        line = b""
        give_up_at = time.monotonic() + READY_WITHIN_S
        while not line.endswith(b"\n"):
            left_s = give_up_at - time.monotonic()
            if left_s <= 0 or not select.select([pipe], [], [], left_s)[0]:
                raise self._failed(f"the daemon was not ready within {READY_WITHIN_S:g} s")
            piece = os.read(pipe.fileno(), 65536)
            if not piece:
                code = self._process.wait()
                raise self._failed(f"the daemon ended with exit code {code} before it was ready")
            line += piece
        ready: dict[str, Any] = json.loads(line)
        return ready

    def _failed(self, message: str) -> DaemonFailed:
        last = self._log_file.read_text(errors="replace").splitlines()[-20:]
        return DaemonFailed("\n".join([message, *last]))

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
