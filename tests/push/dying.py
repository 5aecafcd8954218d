"""A store in which this process ends by ``kill -9``, before or right after one of its changes.

All stores that share a :class:`Death` count together, across threads. Repeated status writes do
not count.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from ingester.pushes.store import LEADER
from ingester.reports.pushes import (
    FOLDER as STATUSES,
)
from persist.store import ObjectStore, PutInfo


class Death:
    """The end of this process at its n-th change in a store; never for 0."""

    def __init__(self, at: int, *, done: bool) -> None:
        self._left = at
        self._done = done
        self._lock = threading.Lock()

    def change(self, path: str, call: Callable[[], PutInfo]) -> PutInfo:
        """Make a change, unless the process ends before it."""
        if path.startswith(f"{STATUSES}/") or path.endswith(f"/{LEADER}"):
            return call()
        with self._lock:
            self._left -= 1
            mine = self._left == 0
        if mine and not self._done:
            _die("before", path)
        info = call()
        if mine:
            _die("after", path)
        return info


class DyingStore:
    """A store that passes every call on; one of the changes may be the last."""

    def __init__(self, inner: ObjectStore, death: Death) -> None:
        self._inner = inner
        self._death = death

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def put(self, path: str, data: Any) -> PutInfo:
        return self._death.change(path, lambda: self._inner.put(path, data))

    def create(self, path: str, data: Any) -> PutInfo:
        return self._death.change(path, lambda: self._inner.create(path, data))


def _die(when: str, path: str) -> None:
    print(f"killed {when} {path}", flush=True)
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)
