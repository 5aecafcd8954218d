"""An object store of a simulation: its answers take their time, and each request is counted.

Law of this file: a request takes effect at one moment, halfway to its answer, as in a store that is
consistent. Latencies are drawn anew for each: lognormal around the median, as stores are measured
to be, so that one in a hundred takes about three times as long.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, TypeVar

import pyarrow as pa

from persist.store import ObjectInfo, PutInfo
from tests.drivers.memory_store import MemoryStore

T = TypeVar("T")

_SIGMA = math.log(3) / 2.326
"""So that the 99th percentile is three times the median."""
_LISTED_AT_ONCE = 1000
_IN_PARALLEL = 8
"""The manifest's readers read so many changelogs at the same time."""


@dataclass(frozen=True, slots=True)
class Latencies:
    """The medians of a store's answers, in seconds."""

    get_s: float = 0.015
    put_s: float = 0.030
    list_s: float = 0.040


@dataclass(frozen=True, slots=True)
class Prices:
    """What a thousand requests cost, in dollars; those of S3 Standard in us-east-1."""

    writes: float = 0.005
    """PUT, conditional or not, and LIST."""
    reads: float = 0.0004
    """GET and HEAD."""

    def of(self, requests: Counter[str]) -> float:
        """What these cost."""
        reads = requests["get"]
        return (self.writes * (requests.total() - reads) + self.reads * reads) / 1000


class SimulatedStore(MemoryStore):
    """A store whose requests take the time of :class:`Latencies`."""

    def __init__(
        self,
        latencies: Latencies,
        sleep: Callable[[float], None],
        seconds: Callable[[], float],
        rng: Random,
    ) -> None:
        """``sleep`` lets time pass, ``seconds`` tells it: a simulation's, or real ones."""
        super().__init__()
        self.requests: Counter[str] = Counter()
        self.latencies = latencies
        self._sleep = sleep
        self._seconds = seconds
        self._rng = rng

    def _take(self, kind: str, median_s: float, call: Callable[[], T]) -> T:
        self.requests[kind] += 1
        seconds = median_s * self._rng.lognormvariate(0, _SIGMA)
        self._sleep(seconds / 2)
        try:
            return call()
        finally:
            self._sleep(seconds / 2)

    def put(self, path: str, data: Any) -> PutInfo:
        kind = "snapshot" if path.endswith(".snapshot") else "put"
        return self._take(kind, self.latencies.put_s, lambda: MemoryStore.put(self, path, data))

    def create(self, path: str, data: Any) -> PutInfo:
        def create() -> PutInfo:
            return MemoryStore.create(self, path, data)

        return self._take("create", self.latencies.put_s, create)

    def get(self, path: str) -> bytes:
        return self._take("get", self.latencies.get_s, lambda: MemoryStore.get(self, path))

    def open(self, path: str) -> pa.NativeFile:
        return pa.BufferReader(self.get(path))

    def exists(self, path: str) -> ObjectInfo | None:
        def exists() -> ObjectInfo | None:
            return MemoryStore.exists(self, path)

        return self._take("get", self.latencies.get_s, exists)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        for number, info in enumerate(MemoryStore.list(self, prefix, start_after)):
            if number % _LISTED_AT_ONCE == 0:
                self._take("list", self.latencies.list_s, lambda: None)
            yield info

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self._seconds())
