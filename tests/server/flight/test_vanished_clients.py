"""A client that disconnects midway is counted and is not an error of the daemon."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until
from tests.drivers.wire import http

PRELUDE = """
import json, os, sys
import pyarrow as pa
import pyarrow.flight as fl

client = fl.connect(sys.argv[1])
where = fl.FlightDescriptor.for_path("it", "vanished")
batch = pa.record_batch({"i": pa.array(range(20_000))})
"""
SENDS_AHEAD = """
writer, answers = client.do_put(where, batch.schema)
for _ in range(400):
    writer.write_batch(batch)
os._exit(0)
"""
IN_TURNS = """
writer, answers = client.do_put(where, batch.schema)
for _ in range(10):
    writer.write_batch(batch)
    answers.read()
writer.write_batch(batch)
os._exit(0)
"""
REPLICATES = """
columns = [{"role": "old_pk", "name": "id"}, {"role": "new_pk", "name": "id"}]
command = {"type": "sync", "namespace": "it", "table": "v", "origin": "gone", "columns": columns}
ids = pa.array(range(20_000))
batch = pa.record_batch([pa.nulls(20_000, pa.int64()), ids], names=["a", "b"])
where = fl.FlightDescriptor.for_command(json.dumps(command | {"sequence": 1}).encode())
writer, answers = client.do_put(where, batch.schema)
writer.write_batch(batch)
os._exit(0)
"""
READS = """
reader = client.do_get(fl.Ticket(b'{"namespace": "it", "table": "vanished"}'))
reader.read_chunk()
os._exit(0)
"""


def _gone(daemon: Daemon) -> float:
    text = http(f"{daemon.http}/metrics")[2].decode()
    (family,) = [
        each
        for each in text_string_to_metric_families(text)
        if each.name == "ingester_clients_gone"
    ]
    return sum(sample.value for sample in family.samples if sample.name.endswith("_total"))


def test_clients_that_vanish_are_counted_and_no_error_is_shown_to_the_operator(
    tmp_path: Path,
) -> None:
    """Regression: each was logged with a traceback and shown on the page as an error."""
    with Daemon.start(tmp_path / "data") as daemon:
        for program in (SENDS_AHEAD, IN_TURNS, REPLICATES, READS):
            command = [sys.executable, "-c", PRELUDE + program, daemon.flight]
            subprocess.run(command, check=True, timeout=60)
        until(lambda: _gone(daemon) >= 1, "a client that is gone")
        status = json.loads(http(f"{daemon.http}/api/status")[2])
        assert status["errors"] == []
        assert status["streams"]["open"] == 0
        logged = daemon.stderr_file.read_text()
        assert "request failed" not in logged
        assert "Traceback" not in logged
