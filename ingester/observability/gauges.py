"""How full everything is at one moment: the gauges of a scrape.

Law of this file: what already is a number in the daemon is not counted again. Gauges are read from
one ``Gauges`` per scrape, so that they agree with each other; it is made on the loop, which owns
what it reads. Imports trio: part of the daemon.
"""

from collections.abc import Callable, Iterator, Mapping

import msgspec
import trio
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class Gauges(msgspec.Struct, frozen=True, kw_only=True):
    """How full everything is at one moment; what the gauges show."""

    memory_by_kind_bytes: Mapping[str, int] = {}
    memory_limit_bytes: int = 0
    memory_low_bytes: int = 0
    memory_high_bytes: int = 0
    buffered_rows: int = 0
    buffered_bytes: int = 0
    buffered_partitions: int = 0
    persist_queued_jobs: int = 0
    persist_queued_bytes: int = 0
    persist_active_jobs: int = 0
    log_segments: int = 0
    log_bytes: int = 0
    log_pending_operations: int = 0
    streams_open: int = 0
    streams_stalled: int = 0
    answer_files: int = 0
    answer_file_bytes: int = 0
    ready: int = 0
    """1 while queries are answered."""
    accepts_writes: int = 0
    """1 while a write would be taken."""


_GAUGES = {
    "memory_limit_bytes": "memory.limit",
    "memory_low_bytes": "Watermark above which the daemon persists",
    "memory_high_bytes": "Watermark above which the daemon refuses writes",
    "buffered_rows": "Rows that are not yet in a committed file",
    "buffered_bytes": "Memory of the rows that are not yet in a committed file",
    "buffered_partitions": "Partitions with a buffer",
    "persist_queued_jobs": "Frozen buffers that wait for a worker",
    "persist_queued_bytes": "Memory of the frozen buffers that wait for a worker",
    "persist_active_jobs": "Persists under way",
    "log_segments": "Log segments on local disk",
    "log_bytes": "Bytes of the log segments on local disk",
    "log_pending_operations": "Operations that wait for their sync",
    "streams_open": "Open query streams",
    "streams_stalled": "Open query streams whose client has stopped reading",
    "answer_files": "Files on local disk with rows of keyed answers that are sent later",
    "answer_file_bytes": "Bytes of these files, at most",
    "ready": "1 while queries are answered",
    "accepts_writes": "1 while a write would be taken",
}


class LevelGauges(Collector):
    """Asks for the levels once per scrape, on the loop that was running when it was made."""

    def __init__(self, levels: Callable[[], Gauges]) -> None:
        self._levels = levels
        in_loop = trio.lowlevel.in_trio_run()
        self._loop = trio.lowlevel.current_trio_token() if in_loop else None

    def describe(self) -> Iterator[Metric]:
        """Name the gauges without asking for them: at registration the daemon is not up yet."""
        return self._families(Gauges())

    def collect(self) -> Iterator[Metric]:
        """Give the gauges of now."""
        if self._loop is None or trio.lowlevel.in_trio_run():
            return self._families(self._levels())
        return self._families(trio.from_thread.run_sync(self._levels, trio_token=self._loop))

    def _families(self, levels: Gauges) -> Iterator[Metric]:
        for name, text in _GAUGES.items():
            yield GaugeMetricFamily(f"ingester_{name}", text, value=getattr(levels, name))
        memory = GaugeMetricFamily(
            "ingester_memory_used_bytes", "Bytes that count against memory.limit", labels=["kind"]
        )
        for kind, used in levels.memory_by_kind_bytes.items():
            memory.add_metric([kind], used)
        yield memory
