"""Law: groups are written by one thread of the log's own, which waits for nothing but the next one.

A thread that is borrowed for each group costs a task's way through the event loop twice; a commit
waits for that as long as for a fast disk.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

import trio

Then = Callable[[BaseException | None], None]


class AppendThread:
    """Does jobs in order; each one's end is told on the loop that this was made on."""

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._jobs: SimpleQueue[tuple[Callable[[], None], Then] | None] = SimpleQueue()
        # A daemon: a sync that never returns must not keep a process that has given up.
        threading.Thread(target=self._work, name="wal-append", daemon=True).start()

    def do(self, job: Callable[[], None], then: Then) -> None:
        """Run `job` in the thread, then ``then(what it raised)`` on the loop: it must not raise."""
        self._jobs.put((job, then))

    def end(self) -> None:
        """End the thread when it has done what it was given."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (work := self._jobs.get()) is not None:
            job, then = work
            raised: BaseException | None = None
            try:
                job()
            except BaseException as exc:
                raised = exc
            try:
                self._token.run_sync_soon(then, raised)
            except trio.RunFinishedError:
                return  # nobody is left to be told
            del work, job, then, raised
