"""Client processes that speak JSON lines.

The end of the owner's ``with`` block ends every process that it started.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE_S = 600.0


class Client:
    """One process of ``tests.stalled.<module>``."""

    def __init__(self, module: str, *arguments: object) -> None:
        self.events: list[dict[str, Any]] = []
        """All lines of the process so far, for an owner that does not wait for them."""
        self._said: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"tests.stalled.{module}", *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._thread.join()

    def tell(self, order: dict[str, Any]) -> None:
        """Send a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    @property
    def processor_s(self) -> float:
        """The processor time of the process so far, in seconds."""
        stat = Path(f"/proc/{self._process.pid}/stat").read_text()
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def hear(self) -> dict[str, Any]:
        """Wait for the next line and return it."""
        event = self._said.get(timeout=PATIENCE_S)
        if event is None:
            self._said.put(None)
            raise RuntimeError(f"{self._process.args!r} has ended")
        return event

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                event = json.loads(line)
                self.events.append(event)
                self._said.put(event)
        self._said.put(None)
