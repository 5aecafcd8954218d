"""A buffer that cannot be encoded holds up nothing else, and is told until it is in a file.

The cause here is a damaged file of a keyed table, which the buffer's rows would replace.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until
from tests.drivers.wire import create, http, numbers, persist, put, rows

KEYED, OTHER = ("ns", "keyed"), ("ns", "other")
SCHEMA = pa.schema([pa.field("i", pa.int64(), nullable=False)])


def _alarms(daemon: Daemon) -> dict[str, str]:
    _, _, body = http(f"{daemon.http}/api/status")
    return {each["name"]: each["message"] for each in json.loads(body)["alarms"]}


def _is_persisted(client: fl.FlightClient) -> bool:
    """Flush; an attempt that began before may still find the damaged file."""
    try:
        persist(client, KEYED)
    except fl.FlightInternalError:
        return False
    return True


def test_a_buffer_that_cannot_be_encoded_is_told_and_left_in_the_log(tmp_path: Path) -> None:
    daemon = Daemon.start(tmp_path / "data")
    with fl.connect(daemon.flight) as client:
        create(client, KEYED, SCHEMA, primary_key=["i"])
        put(client, KEYED, pa.record_batch([pa.array(range(5))], schema=SCHEMA))
        persist(client, KEYED)
        [file] = (daemon.data_dir / "store").rglob("*.parquet")
        content = file.read_bytes()
        file.write_bytes(b"\0" * len(content))
        put(client, KEYED, pa.record_batch([pa.array(range(3, 8))], schema=SCHEMA))
        put(client, OTHER, numbers(0, 3))
        with pytest.raises(fl.FlightInternalError, match="persist: table ns/keyed: "):
            persist(client, KEYED)
        until(lambda: "persist-failing" in _alarms(daemon), "the alarm", 10)
        assert "1 buffer cannot be written" in _alarms(daemon)["persist-failing"]
        for first in (10, 20, 30):  # other flushes that succeed do not end the alarm
            put(client, OTHER, numbers(first, 1))
            persist(client, OTHER)
            with pytest.raises(fl.FlightInternalError, match="persist: table ns/keyed: "):
                persist(client, KEYED)
            assert "1 buffer cannot be written" in _alarms(daemon)["persist-failing"]
    began = time.monotonic()
    assert daemon.terminate() == 7
    assert time.monotonic() - began < 30, "the stop does not wait for its deadline"
    with daemon.again() as again, fl.connect(again.flight) as client:
        with pytest.raises(fl.FlightInternalError, match="persist: table ns/keyed: "):
            persist(client, KEYED)
        file.write_bytes(content)
        until(lambda: _is_persisted(client), "the buffer is in a file", 30)
        assert rows(client, KEYED) == list(range(8))
        assert rows(client, OTHER) == [0, 1, 2, 10, 20, 30]
        until(lambda: "persist-failing" not in _alarms(again), "no alarm", 10)
        assert again.terminate() == 0
