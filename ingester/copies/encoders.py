"""The threads that make files of copied rows, and the bytes that copies hold meanwhile.

Law of this file: there are a few threads for all copies together, so that what they hold is bounded
however many copies there are; whoever has rows for a file waits for one of them. Any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ingester.memory.ledger import MemoryLedger

THREADS = 2
"""A file is sorted and encoded by one thread, mostly outside of the interpreter's lock."""
SHARE = 16
"""The divisor of the memory's limit: a copy holds no more rows than that for one file."""


class Encoders:
    """Runs what makes files, and counts the bytes of all copies.

    Args:
        ledger: Says how much memory there is; what copies hold is one of its kinds.
    """

    def __init__(self, ledger: MemoryLedger, threads: int = THREADS) -> None:
        self._ledger = ledger
        self._free = threading.Semaphore(threads)
        self._lock = threading.Lock()
        self.nbytes = 0
        """The bytes of rows that copies hold, and of files that are being made of them."""
        self.most_held = ledger.watermarks.limit // SHARE
        ledger.gauge("copies", lambda: self.nbytes)

    def submit(self, work: Callable[[], None]) -> None:
        """Have a thread do the work as soon as one is free; waits until then.

        Args:
            work: It raises nothing.
        """
        self._free.acquire()

        def run() -> None:
            try:
                work()
            finally:
                self._free.release()

        # It ends with the process, whatever the store does.
        threading.Thread(target=run, name="copy-encoder", daemon=True).start()

    def hold(self, nbytes: int) -> None:
        """Count bytes that are held more; fewer where that is negative."""
        with self._lock:
            self.nbytes += nbytes

    def take_room(self, nbytes: int) -> bool:
        """Count bytes that are held more, if all that is held then is below the high watermark."""
        with self._lock:
            if self._ledger.used + nbytes > self._ledger.watermarks.high:
                return False
            self.nbytes += nbytes
            return True
