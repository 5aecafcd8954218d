"""Memory that the daemon frees is returned to the system, not kept for later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.daemon import Daemon, Launch
from tests.drivers.waiting import until
from tests.drivers.wire import Table, persist, put

BATCHES = 300
ROWS = 20_000


def _resident_mb(daemon: Daemon) -> float:
    text = Path(f"/proc/{daemon.pid}/status").read_text()
    return float(text.split("VmRSS:")[1].split()[0]) / 1024


def test_after_a_persist_most_of_the_memory_of_its_rows_is_gone(
    tmp_path: Path, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The allocator's own thread returns memory, and a fork does not copy that thread.
    monkeypatch.setattr(Launch, "warm", False)
    columns = [pa.array(np.random.default_rng(0).random(ROWS)) for _ in range(6)]
    batch = pa.record_batch(columns, names=[f"c{number}" for number in range(6)])
    settings: dict[str, Any] = {"persist__max_age": "1h", "persist__max_partition_bytes": "4GiB"}
    with Daemon.start(tmp_path, **settings) as daemon, fl.connect(daemon.flight) as client:
        put(client, table, batch)
        persist(client, table)
        before = _resident_mb(daemon)
        put(client, table, *[batch] * BATCHES)
        full = _resident_mb(daemon)
        assert full - before > 0.8 * BATCHES * batch.nbytes / 2**20
        persist(client, table)
        until(
            lambda: _resident_mb(daemon) - before < 0.4 * (full - before),
            f"{full:.0f} MB to go back towards {before:.0f} MB",
        )
