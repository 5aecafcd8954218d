"""A peer's server: started in the foreground, ready when its log says so, killed at the end.

The kernel kills the server when this program ends for any reason. The server's log is read all
the time and its newest lines are kept; the last are the reason if the server does not start.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.bench.peers.installing import Missing

_READY_WITHIN_S = 60.0
_LINES_KEPT = 10_000
_LAST_LINES = 5
_SET_PARENT_DEATH_SIGNAL = 1
_LIBC = ctypes.CDLL(None)


def unprivileged_user() -> str | None:
    """The user for a server that refuses to run as root; ``None`` for the current user."""
    return "nobody" if os.geteuid() == 0 else None


class Server:
    """A running server."""

    def __init__(
        self,
        command: Sequence[str | Path],
        ready: str,
        *,
        environment: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> None:
        """Start the server and return when a line of its log matches the regular expression.

        Args:
            ready: The regular expression.

        Raises:
            Missing: The server ended before, or took too long; with its last lines.
        """
        self._pattern = re.compile(ready)
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._decided = threading.Event()
        self.ready: re.Match[str] | None = None
        self._process = subprocess.Popen(
            [str(part) for part in command],
            env={**os.environ, **(environment or {})},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            user=user,
            group=None if user is None else _group_of(user),
            extra_groups=None if user is None else [],
            preexec_fn=_die_with_parent,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._decided.wait(_READY_WITHIN_S)
        if self.ready is None:
            self.end()
            last = " | ".join(line.strip() for line in list(self._lines)[-_LAST_LINES:])
            raise Missing(f"{Path(command[0]).name} did not start: {last}")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line)
            if self.ready is None and (found := self._pattern.search(line)):
                self.ready = found
                self._decided.set()
        self._decided.set()

    def said(self, text: str) -> int:
        """Return how many of the kept lines of its log contain the text."""
        return sum(text in line for line in tuple(self._lines))

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Kill it, and wait until the server and all processes that hold its log open are gone."""
        self._process.send_signal(signal.SIGQUIT)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


def _group_of(user: str) -> int:
    import pwd

    return pwd.getpwnam(user).pw_gid


def _die_with_parent() -> None:
    # After the change of user, which would clear it.
    _LIBC.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
