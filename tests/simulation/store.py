"""A simulated object store, with latencies and a count of its requests.

A request takes effect at one time, halfway to its answer, as in a consistent store. Each latency
is drawn from a lognormal distribution around the median, as measured at real stores, so that one
in a hundred is about three times as long.
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
"""Makes the 99th percentile three times the median."""
_LISTED_AT_ONCE = 1000
_IN_PARALLEL = 8
"""The number of changelogs that a manifest reader reads concurrently."""


@dataclass(frozen=True, slots=True)
class Latencies:
    """The median latencies of a store, in seconds."""

    get_s: float = 0.015
    put_s: float = 0.030
    list_s: float = 0.040


@dataclass(frozen=True, slots=True)
class Prices:
    """The prices of a thousand requests in dollars: S3 Standard in us-east-1."""

    writes: float = 0.005
    """PUT, conditional or not, and LIST."""
    reads: float = 0.0004
    """GET and HEAD. A DELETE costs nothing."""

    def of(self, requests: Counter[str]) -> float:
        """The price of these requests."""
        reads = requests["get"]
        writes = requests.total() - reads - requests["delete"]
        return (self.writes * writes + self.reads * reads) / 1000


class SimulatedStore(MemoryStore):
    """A store whose requests take the time of :class:`Latencies`."""

    def __init__(
        self,
        latencies: Latencies,
        sleep: Callable[[float], None],
        seconds: Callable[[], float],
        rng: Random,
    ) -> None:
        """``sleep`` lets time pass, ``seconds`` returns it, simulated or real."""
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

    def delete(self, path: str) -> None:
        self._take("delete", self.latencies.put_s, lambda: MemoryStore.delete(self, path))

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self._seconds())
