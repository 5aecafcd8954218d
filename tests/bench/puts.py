"""The plain loop that bounds the store log: create objects conditionally, and nothing else.

The same calls of the same store, with objects about as large as the daemon's log objects.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from persist.store import open_store


class PutLoop:
    """Creates objects of zeros in a store."""

    def __init__(self, url: str, **store_options: Any) -> None:
        self._store = open_store(url, **store_options)
        self._numbers = count()
        self._create(b"0")  # connects

    def latencies(
        self, object_bytes: int, *, every_s: float, seconds: float
    ) -> npt.NDArray[np.float64]:
        """Return the seconds of each PUT, one after another, at most one every ``every_s``."""
        data, found = bytes(object_bytes), []
        due = began = time.monotonic()
        while due - began < seconds:
            time.sleep(max(0.0, due - time.monotonic()))
            started = time.monotonic()
            self._create(data)
            found.append(time.monotonic() - started)
            due = max(time.monotonic(), started + every_s)
        return np.array(found)

    def bytes_per_s(self, object_bytes: int, *, at_once: int, seconds: float) -> float:
        """Return the rate of several threads that create objects as fast as they can."""
        data = bytes(object_bytes)
        began = time.monotonic()

        def create_until_over(_: int) -> int:
            created = 0
            while time.monotonic() - began < seconds:
                self._create(data)
                created += 1
            return created

        with ThreadPoolExecutor(at_once) as threads:
            created = sum(threads.map(create_until_over, range(at_once)))
        return created * object_bytes / (time.monotonic() - began)

    def _create(self, data: bytes) -> None:
        self._store.create(f"{next(self._numbers):020d}.wal", data)
