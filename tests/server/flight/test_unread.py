"""Streams that go on for long: what has made batches is not what nobody has seen."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl
import pytest

from ingester.server.flight.unread import LOOK_S, SLOW_S, WORTH_BYTES
from tests.drivers.daemon import Daemon

PAUSE_S = 0.02
BATCH = pa.record_batch([np.random.default_rng(1).random(40_000)], names=["v"])


@pytest.mark.slow
def test_a_stream_that_brings_batch_after_batch_is_not_cut(tmp_path: Path) -> None:
    with (
        Daemon.start(tmp_path / "d", flight__max_batch_bytes="1MiB") as daemon,
        fl.connect(daemon.flight) as client,
    ):
        path = fl.FlightDescriptor.for_path("long", "stream")
        writer, reader = client.do_put(path, BATCH.schema)
        sent, until = 0, time.monotonic() + SLOW_S + 4 * LOOK_S
        with writer:
            while time.monotonic() < until:
                writer.write_batch(BATCH)
                assert reader.read() is not None
                sent += 1
                time.sleep(PAUSE_S)  # the stream is waited for when the daemon looks
            writer.done_writing()
            assert reader.read() is None
        assert sent * BATCH.nbytes > WORTH_BYTES
        ticket = fl.Ticket(b'{"namespace":"long","table":"stream","columns":["v"]}')
        assert client.do_get(ticket).read_all().num_rows == sent * BATCH.num_rows
        assert "connection cut" not in daemon.stderr_file.read_text()
