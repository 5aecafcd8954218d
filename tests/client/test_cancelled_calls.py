"""A call that the daemon's side cancels is an error of that call; a real Ctrl-C interrupts."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from ingester.client import NEVER, Client, RetryPolicy, Unreachable
from tests.client.small_daemon import SmallDaemon


class Cancels(SmallDaemon):
    """Cancels the first ``times`` listings, as gRPC does when a server is shut down."""

    times = 1

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[flight.FlightInfo]:
        if self.times:
            self.times -= 1
            raise flight.FlightCancelledError("the server is shut down")
        return iter(())


def test_a_cancelled_call_interrupts_nobody_and_is_made_again() -> None:
    with Cancels() as daemon:
        with Client(daemon.endpoint, retry=NEVER) as client:
            with pytest.raises(Unreachable, match="shut down"):
                client.tables()
            # pyarrow's interrupt would come to the main thread, whoever has called.
            daemon.times = 1
            caught: list[BaseException] = []

            def call() -> None:
                try:
                    client.tables()
                except Unreachable as exc:
                    caught.append(exc)

            thread = threading.Thread(target=call)
            thread.start()
            thread.join(10)
            assert len(caught) == 1
        daemon.times = 2
        with Client(daemon.endpoint, retry=RetryPolicy(for_s=10)) as client:
            assert client.tables() == []


class Endless(SmallDaemon):
    """Answers a query with one batch after another, until ``leave`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.leave = threading.Event(), threading.Event()

    def do_get(self, context: Any, ticket: Any) -> flight.GeneratorStream:
        batch = pa.record_batch({"a": [1]})

        def batches() -> Iterator[pa.RecordBatch]:
            while not self.leave.wait(0.001):
                self.entered.set()
                yield batch

        return flight.GeneratorStream(batch.schema, batches())


def test_a_signal_still_interrupts_a_query() -> None:
    with Endless() as daemon:

        def interrupt() -> None:
            daemon.entered.wait(10)
            os.kill(os.getpid(), signal.SIGINT)

        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        try:
            with Client(daemon.endpoint, retry=NEVER) as client, pytest.raises(KeyboardInterrupt):
                client.query("n", "t", timeout_s=20)
        finally:
            daemon.leave.set()
            interrupting.join(10)
