"""A daemon that receives malformed bytes, and the checks that it is unharmed.

An attempt is judged by its answer, which must be one of ours or one of Arrow's own and never
``internal``. The daemon is judged by what an honest client gets afterwards. The same process
accepts a write, returns all rows ever acknowledged to that client, and has used little memory.
"""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl

from tests.drivers.daemon import Daemon
from tests.drivers.wire import persist, put, query
from tests.fuzz.raw_flight import INTERNAL, UNKNOWN, Answered, call, flight_data, path_descriptor

ADDRESS_SPACE_BYTES = 8 << 30
PEAK_BYTES = 1_200 << 20
"""Four times the daemon's memory for one batch of the largest size, plus its memory at rest."""
ANSWER_WITHIN_S = 30.0

Messages = list[tuple[bytes, bytes]]


class Attacked:
    """A daemon, an honest client's table in it, and the attempts."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.table = ("honest", "table")
        self.attempts = 0
        self._rows = 0
        self.check()

    @property
    def peak_bytes(self) -> int:
        """Peak memory of the process."""
        status = Path(f"/proc/{self.daemon.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None, "the daemon has ended"
        return int(found[1]) * 1024

    def put(
        self,
        messages: Messages,
        *,
        descriptor: bytes | None = None,
        metadata: bytes = b"",
        table: str | None = None,
    ) -> Answered:
        """Send IPC messages as one DoPut, by default to a table that no other attempt uses."""
        self.attempts += 1
        where = descriptor or path_descriptor("attacked", table or f"t{self.attempts}")
        frames = [
            flight_data(header, body, None if index else where, metadata if index else b"")
            for index, (header, body) in enumerate(messages)
        ]
        return self.send("DoPut", frames)

    def send(self, method: str, frames: list[bytes]) -> Answered:
        """Send protobuf messages, and check that the answer is an intended one."""
        answered = call(self.daemon.flight, method, frames, timeout_s=ANSWER_WITHIN_S)
        assert answered.status is not None, f"the connection ended: {answered}"
        assert "internal error" not in answered.message, self.last_error(answered.message)
        if answered.status in (UNKNOWN, INTERNAL):  # gRPC's own, before a handler ran
            assert "Python exception" not in answered.message, answered
        return answered

    def last_error(self, message: str) -> str:
        """Return the log's last internal error."""
        found = re.search(r"internal error (\w+)", message)
        assert found is not None
        lines = self.daemon.stderr_file.read_text(errors="replace").splitlines()
        return next((line for line in lines if found[1] in line), message)

    def check(self) -> None:
        """Raise AssertionError unless an honest client is served as before."""
        assert self.daemon.process.poll() is None, self.daemon.stderr_file.read_text()[-4000:]
        with fl.connect(self.daemon.flight) as client:
            (answer,) = put(client, self.table, pa.record_batch({"i": [self._rows]}))
            assert answer["accepted"]
            self._rows += 1
            found = query(client, self.table)["i"].to_pylist()
            assert sorted(found) == list(range(self._rows))
        assert self.peak_bytes < PEAK_BYTES, f"{self.peak_bytes >> 20} MiB at the peak"

    def check_persisted(self) -> None:
        """Check that rows from accepted attempts are the same after a flush."""
        with fl.connect(self.daemon.flight) as client:
            names = [tuple(info.descriptor.path) for info in client.list_flights()]
            tables = [(a.decode(), b.decode()) for a, b in names]
            before = {table: query(client, table).num_rows for table in tables}
            for table in tables:
                persist(client, table)
            after = {table: query(client, table).num_rows for table in tables}
        assert after == before
        assert sum(before.values()) > self._rows, "no attempt was taken: are the seeds still right?"
        self.check()
