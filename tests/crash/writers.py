"""Controls the processes of the campaign's writers and readers.

Between :meth:`Writers.wait_idle` and the next :meth:`Writers.go` no client sends anything, and
every note of the round is in the ledgers and the history.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from tests.crash.history import History
from tests.crash.ledger import WriterLedger, has_origin
from tests.crash.writer import name_of

COMMAND = [sys.executable, "-m", "tests.crash.client_process"]
ROOT = Path(__file__).resolve().parent.parent.parent
IDLE_WITHIN_S = 60.0


class WritersStuck(Exception):
    """Raised when a writer does not notice the end of its round."""


class Writers:
    """All writers in a few processes, with one reader in each."""

    def __init__(
        self, folder: Path, *, seed: int, writers: int, processes: int, rows_per_s: float
    ) -> None:
        self.history = History(folder / "history")
        self._idle = [name_of(w) for w in range(writers)] + [f"r{p}" for p in range(processes)]
        self.ledgers = [
            WriterLedger(folder / f"{name_of(w)}.ledger", w, resends=has_origin(w))
            for w in range(writers)
        ]
        self._round = 0
        self._events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._processes = []
        for index in range(processes):
            clients = [*(str(w) for w in range(index, writers, processes)), f"r{index}"]
            pace = str(rows_per_s / writers)
            # Each stream that a kill cuts off leaves a line on the C++ client's standard error.
            with (folder / f"writers-{index}.stderr").open("wb") as stderr:
                process = subprocess.Popen(
                    [*COMMAND, str(folder), str(seed), pace, *clients],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    text=True,
                    cwd=ROOT,
                )
            self._processes.append(process)
            threading.Thread(target=self._listen, args=(process.stdout,), daemon=True).start()

    def __enter__(self) -> Writers:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()
        self.history.close()

    def go(self, endpoint: str) -> None:
        """Let all write to this endpoint."""
        self._round += 1
        self._tell({"endpoint": endpoint, "round": self._round})

    def pause(self) -> None:
        """Let all finish their pending writes; :meth:`wait_idle` reports when they have."""
        self._tell({"pause": self._round})

    def wait_idle(self) -> list[dict[str, Any]]:
        """Return how each writer's round ended: ``idle``, ``at`` (monotonic seconds), ``error``.

        Raises:
            WritersStuck: A writer has not noticed the end.
        """
        ends: list[dict[str, Any]] = []
        while len(ends) < len(self._idle):
            try:
                event = self._events.get(timeout=IDLE_WITHIN_S)
            except queue.Empty:
                missing = set(self._idle) - {e["idle"] for e in ends}
                raise WritersStuck(
                    f"{sorted(missing)} were not idle {IDLE_WITHIN_S:g} s after the end of"
                    f" round {self._round}"
                ) from None
            assert event["round"] == self._round
            ends.append(event)
        self.update()
        return ends

    def update(self) -> None:
        """Read the writers' notes since the last time."""
        for ledger in self.ledgers:
            ledger.update()

    @property
    def acknowledged_rows(self) -> int:
        """Rows acknowledged by the time of the last update."""
        return sum(ledger.acknowledged_rows for ledger in self.ledgers)

    def _tell(self, order: dict[str, Any]) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()

    def _listen(self, lines: Any) -> None:
        for line in lines:
            self._events.put(json.loads(line))
