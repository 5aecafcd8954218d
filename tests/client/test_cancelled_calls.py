"""A call that the daemon cancels is an error of that call; a real Ctrl-C interrupts."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from ingester.client import NEVER, Client, RetryPolicy, Unreachable
from ingester.client.connection import Connection
from tests.client.small_daemon import SmallDaemon


class Cancels(SmallDaemon):
    """Cancels the first ``times`` calls, as gRPC does during a server's shutdown."""

    times = 1

    def do_get(self, context: Any, ticket: Any) -> Any:
        self._cancel()
        return super().do_get(context, ticket)

    def do_action(self, context: Any, action: Any) -> Iterator[Any]:
        self._cancel()
        return super().do_action(context, action)

    def _cancel(self) -> None:
        if self.times:
            self.times -= 1
            raise flight.FlightCancelledError("the server is shut down")


def _query(client: Client) -> None:
    assert client.query("n", "t").num_rows == 1


def _action(client: Client) -> None:
    client.action("origins", {})


@pytest.mark.parametrize("call", [_query, _action])
def test_a_call_cancelled_by_the_server_is_retried(
    call: Callable[[Client], None],
) -> None:
    with Cancels() as daemon:
        daemon.rows["n", "t"] = [pa.record_batch({"a": [1]})]
        with Client(daemon.endpoint, retry=NEVER) as client:
            with pytest.raises(Unreachable, match="shut down"):
                call(client)
            # pyarrow's interrupt goes to the main thread, whichever thread makes the call.
            daemon.times = 1
            caught: list[BaseException] = []

            def call_elsewhere() -> None:
                try:
                    call(client)
                except Unreachable as exc:
                    caught.append(exc)

            thread = threading.Thread(target=call_elsewhere)
            thread.start()
            thread.join(10)
            assert len(caught) == 1
        daemon.times = 2
        with Client(daemon.endpoint, retry=RetryPolicy(for_s=10)) as client:
            call(client)


def test_a_ping_cancelled_by_the_server_is_no_interrupt() -> None:
    with Cancels() as daemon:
        connection = Connection(daemon.endpoint, 10.0, NEVER)
        with pytest.raises(Unreachable, match="shut down"):
            connection.ping(10.0)


class Endless(SmallDaemon):
    """Answers a query with batches until ``leave`` is set."""

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
