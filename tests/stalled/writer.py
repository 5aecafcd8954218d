"""A process of writers: ``python -m tests.stalled.writer ENDPOINT WRITERS ROWS``.

    stdout:  {"at": 12.25, "batches": 812, "sent": {"1": 4070}, "acknowledged": {"1": 4060}}   often

A writer sends a few small batches at once, and the next ones when these are acknowledged. At any
time ``sent`` is an upper bound and ``acknowledged`` a lower bound. The process ends with its
standard input.
"""

from __future__ import annotations

import json
import sys
import threading
import time

import pyarrow as pa

from ingester.client import Client
from tests.stalled.rows import NAMESPACE, TABLE, batch_of

EVERY_S = 0.1
AT_ONCE = 4


class Writer:
    """One writer with its own client."""

    def __init__(self, number: int, rows: int) -> None:
        self.number = number
        self.sent = 0
        self.acknowledged = 0
        self.batches = 0
        self._rows = rows

    def write(self, endpoint: str, ended: threading.Event) -> None:
        """Write until ``ended`` is set."""
        with Client(endpoint) as client:
            while not ended.is_set():
                rows = pa.Table.from_batches([batch_of(self.number, self.sent, self._rows)])
                self.sent += self._rows
                batches = rows.to_reader(max_chunksize=max(1, self._rows // AT_ONCE))
                self.batches += client.write(NAMESPACE, TABLE, batches).batches
                self.acknowledged += self._rows


def main(endpoint: str, writers: int, rows: int) -> None:
    """Write until standard input ends."""
    ended = threading.Event()
    all_writers = [Writer(number, rows) for number in range(1, writers + 1)]
    threads = [threading.Thread(target=w.write, args=(endpoint, ended)) for w in all_writers]
    speaker = threading.Thread(target=_speak, args=(all_writers, ended))
    for thread in (*threads, speaker):
        thread.start()
    sys.stdin.read()
    ended.set()
    for thread in (*threads, speaker):
        thread.join()


def _speak(writers: list[Writer], ended: threading.Event) -> None:
    while not ended.wait(EVERY_S):
        acknowledged = {str(w.number): w.acknowledged for w in writers}
        sent = {str(w.number): w.sent for w in writers}
        batches = sum(w.batches for w in writers)
        event = {
            "at": time.monotonic(),
            "batches": batches,
            "sent": sent,
            "acknowledged": acknowledged,
        }
        print(json.dumps(event), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
