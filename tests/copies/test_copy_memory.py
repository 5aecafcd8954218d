"""The memory of copies is counted, bounded by the daemon's limit, and released."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pyarrow as pa

from ingester.client import Client
from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until

LIMIT = 160 << 20
COPIES, BATCHES, ROWS, TEXT = 4, 24, 20_000, 100
"""Four concurrent copies of about 48 MiB each, more than the limit in total."""


def rows(first: int) -> pa.RecordBatch:
    """Return texts that hardly compress."""
    drawn = np.random.default_rng(first).integers(97, 123, ROWS * TEXT, np.uint8)
    texts = pa.Array.from_buffers(
        pa.binary(TEXT), ROWS, [None, pa.py_buffer(drawn.tobytes())]
    ).cast(pa.binary())
    ids = pa.array(range(first, first + ROWS), pa.int64())
    return pa.record_batch({"id": ids, "v": texts.cast(pa.string())})


def held(client: Client) -> int:
    """Return the bytes that copies hold."""
    return int(client.status()["admission"]["memory"]["by_kind"]["copies"])


def test_copies_at_once_stay_within_the_memory_there_is(tmp_path: Path) -> None:
    with (
        Daemon.start(tmp_path / "d", memory__limit=LIMIT) as daemon,
        Client(daemon.flight) as client,
    ):
        base, failures = daemon.resident_bytes, list[BaseException]()
        peak = counted = 0

        def bring(number: int) -> None:
            try:
                with Client(daemon.flight) as own, own.copy("n", f"t{number}", ["id"]) as copy:
                    for turn in range(BATCHES):
                        copy.write(rows(turn * ROWS))
                    copy.finish("source", b"")
            except BaseException as exc:
                failures.append(exc)

        threads = [threading.Thread(target=bring, args=(number,)) for number in range(COPIES)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            peak = max(peak, daemon.resident_bytes - base)
            counted = max(counted, held(client))
            threads[0].join(0.01)
        assert failures == []
        for number in range(COPIES):
            assert client.describe("n", f"t{number}").persisted.rows == BATCHES * ROWS
        assert 0 < counted <= LIMIT
        # The batches being received, sorted and encoded are not counted in the limit.
        assert peak < 2 * LIMIT + (128 << 20)
        # An aborted copy releases its memory while other writes continue.
        copy = client.copy("n", "given", ["id"])
        copy.write(rows(0))
        until(lambda: held(client) > 0, "its rows")
        client.write("n", "other", {"i": [1]})
        copy.abort()
        until(lambda: held(client) == 0, "its rows to go")
        # An open copy does not delay a stop of the daemon.
        client.copy("n", "left", ["id"]).write(rows(0))
        assert daemon.terminate(30.0) == 0
