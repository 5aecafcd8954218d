"""``python -m tests.copies.dying_daemon serve …``: a daemon that dies at a change of a table.

    DIES_AT=N          at the n-th change (from 1): after it if n is even, before it if n is odd
    DIES_IN=FOLDER     the table's folder in the store
    DIES_ONCE=FILE     changes count once this file exists

Apart from its death the daemon is unchanged.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ingester.memory.heap_settings import lay_out_heap
from tests.fencing.pausing import PausingStore

CHANGES = ("put", "create", "delete")


class DyingStore(PausingStore):
    """A store that kills the process at the n-th change of the folder."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._at = int(os.environ["DIES_AT"])
        self._folder = os.environ["DIES_IN"]
        self._once = Path(os.environ["DIES_ONCE"])
        self._seen = 0
        self._lock = threading.Lock()

    def _do(self, call: str, path: str, work: Callable[[], Any]) -> Any:
        meant = call in CHANGES and path.startswith(self._folder) and self._once.exists()
        if not meant:
            return work()
        with self._lock:
            self._seen += 1
            dies = self._seen == self._at
        if dies and self._at % 2:
            _die()
        result = work()
        if dies:
            _die()
        return result


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def main() -> None:
    """Run the command line of ``ingester`` on a :class:`DyingStore`."""
    lay_out_heap()
    from ingester.daemon import startup
    from persist.store import open_store

    vars(startup)["open_store"] = lambda url, **options: DyingStore(open_store(url, **options))
    from ingester.cli import main as ingester

    ingester()


if __name__ == "__main__":
    main()
