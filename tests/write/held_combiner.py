"""A combiner that stays busy until the test frees it, so that arriving batches have to wait."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pyarrow as pa

from ingester.write.combiner import Combiner, Kind, Known, PreparationPace
from persist.partitioning import UNPARTITIONED

PLAIN = Kind(("ns", "t"), 1, UNPARTITIONED)


class Held:
    """A combiner that is busy until `free` is called, and the threads whose batches wait for it."""

    def __init__(self) -> None:
        self.combiner = Combiner()
        self._free = threading.Event()
        self._taken = threading.Event()
        self._threads = [threading.Thread(target=self._hold)]
        self._threads[0].start()
        assert self._taken.wait(20)

    def _hold(self) -> None:
        def work(known: Known) -> None:
            self._taken.set()
            assert self._free.wait(20)

        self.combiner.prepare(pa.record_batch({"n": [0]}), PLAIN, PreparationPace(), work)

    def bring(
        self, each: pa.RecordBatch, work: Callable[[Known], object], kind: Kind = PLAIN
    ) -> None:
        """Prepare a batch in a new thread."""
        thread = threading.Thread(
            target=lambda: self.combiner.prepare(each, kind, PreparationPace(), work)
        )
        thread.start()
        self._threads.append(thread)

    def free(self) -> None:
        self._free.set()
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()
