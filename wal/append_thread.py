"""Law: groups are written by one thread of the log's own, which sleeps while there are none.

A thread that is borrowed for each group costs a task's way through the event loop twice; a commit
waits for that as long as for a fast disk.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class AppendThread:
    """Does `work` each time it is rung. Any thread may ring."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._bell: SimpleQueue[bool] = SimpleQueue()
        # A daemon: a sync that never returns must not keep a process that has given up.
        threading.Thread(target=self._run, name="wal-append", daemon=True).start()

    def ring(self) -> None:
        """Have the work done, once more if it is being done."""
        self._bell.put(True)

    def end(self) -> None:
        """End the thread when it has done what it was rung for."""
        self._bell.put(False)

    def _run(self) -> None:
        while self._bell.get():
            self._work()
