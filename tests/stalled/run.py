"""The phases of a measurement, one after another, against one daemon.

    load ─ half flushed ─▶ write ─▶ readers stall ─▶ they rest ─▶ flush meanwhile
         ─▶ some resume

Compared numbers are from the same run: memory just before the readers start and its peak while
they stall and everything is flushed, and the writers' rates in the same two periods. A reader
counts as stalled once its client's read-ahead is complete. Until then it is still being served
and uses the writers' processors.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.flight as fl

from tests.drivers.daemon import Daemon, Launch
from tests.stalled.memory import MemoryWatch, resident
from tests.stalled.processes import Client
from tests.stalled.rows import LOADER, NAMESPACE, ROW_BYTES, SCHEMA, TABLE, batch_of, create_body

LOAD_ROWS = 64_000
REST_S, REST_SHARE = 0.5, 0.04
"""Readers rest when all of them together have used less processor time than this for this long."""
REST_PATIENCE_S = 60.0
SETTINGS: dict[str, object] = {
    "memory__limit": "8GiB",
    "persist__max_age": "1h",
    "persist__max_partition_bytes": "4GiB",
    "persist__queue_bytes": "4GiB",
    "query__client_timeout": "15m",
}


@dataclass(frozen=True, slots=True)
class Extent:
    """The extent of a measurement."""

    readers: int = 200
    processes: int = 8
    megabytes: int = 1000
    measure_s: float = 5.0
    hold_s: float = 3.0
    """How long everything rests after the flush."""
    go_on: int = 1
    """Readers of each process that resume; the others disconnect."""
    at_once: bool = False
    """Flush while clients are still reading ahead."""
    writers: int = 2
    write_rows: int = 10


@dataclass(slots=True)
class Report:
    """The measurements; bytes, seconds, batches a second."""

    rows: int = 0
    before: dict[str, int] = field(default_factory=dict)
    peaks: dict[str, dict[str, int]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    rate_before: float = 0.0
    rates: dict[str, float] = field(default_factory=dict)
    slowest_s: float = 0.0
    """The longest time without any acknowledgement, to a tenth of a second."""
    answers: list[dict[str, Any]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def growth(self) -> int:
        """The rise of resident memory over that before the readers, while readers stalled."""
        apart = ("start", "some go on", "afterwards")
        peaks = [peak["VmRSS"] for name, peak in self.peaks.items() if name not in apart]
        return max(peaks) - self.before["VmRSS"]

    @property
    def rate_kept(self) -> float:
        """The lowest rate while readers stalled, as a share of the rate before."""
        stalled = ("persist under them", "stand still")
        return min(self.rates[name] for name in stalled) / self.rate_before


class Run:
    """One measurement in ``folder``."""

    def __init__(self, folder: Path, extent: Extent) -> None:
        self.report = Report()
        self._folder = folder
        self._extent = extent
        self._began: tuple[str, float] | None = None

    def run(self) -> Report:
        """Run all phases."""
        extent, report = self._extent, self.report
        with contextlib.ExitStack() as stack:
            daemon = stack.enter_context(Launch(self._folder / "daemon", {}, (), SETTINGS).start())
            self._load(daemon)
            writer = stack.enter_context(
                Client("writer", daemon.flight, extent.writers, extent.write_rows)
            )
            writer.hear()
            time.sleep(extent.measure_s / 2)
            report.rate_before = self._rate(writer, extent.measure_s)
            report.before = resident(daemon.pid)
            watch = MemoryWatch(daemon.pid)
            stack.callback(watch.close)
            self._stall(daemon, writer, watch, stack)
            report.peaks = watch.peaks
        return report

    def _load(self, daemon: Daemon) -> None:
        began = time.monotonic()
        self.report.rows = rows = self._extent.megabytes * 1_000_000 // ROW_BYTES
        with fl.connect(daemon.flight) as client:
            _act(client, "create_table", **create_body())
            for start, stop in ((0, rows // 2), (rows // 2, rows)):
                path = fl.FlightDescriptor.for_path(NAMESPACE, TABLE)
                stream, answers = client.do_put(path, SCHEMA)
                for first in range(start, stop, LOAD_ROWS):
                    stream.write_batch(batch_of(LOADER, first, min(LOAD_ROWS, stop - first)))
                    assert answers.read() is not None
                stream.close()
                if start == 0:
                    _act(client, "persist", timeout_s=600)
        self.report.seconds["load"] = time.monotonic() - began

    def _stall(
        self, daemon: Daemon, writer: Client, watch: MemoryWatch, stack: contextlib.ExitStack
    ) -> None:
        extent, report = self._extent, self.report
        watch.enter("readers open")
        acknowledged = dict(writer.events[-1]["acknowledged"])
        with self._phase("readers open", writer):
            each = extent.readers // extent.processes
            readers = [
                stack.enter_context(Client("reader", daemon.flight, each))
                for _ in range(extent.processes)
            ]
            for reader in readers:
                reader.hear()
        sent = self._after(writer, time.monotonic())["sent"]
        if not extent.at_once:
            watch.enter("they come to rest")
            with self._phase("they come to rest", writer):
                self._await_rest(readers)
        watch.enter("persist under them")
        with self._phase("persist under them", writer), fl.connect(daemon.flight) as client:
            _act(client, "persist", timeout_s=600)
        watch.enter("stand still")
        with self._phase("stand still", writer):
            time.sleep(extent.hold_s)
        watch.enter("some go on")
        with self._phase("some go on", writer):
            go_on = min(extent.go_on, each)
            for reader in readers:
                reader.tell({"go_on": go_on})
            for reader in readers:
                for _ in range(go_on):
                    self._check(reader.hear(), acknowledged, sent)
        watch.enter("afterwards")
        time.sleep(1.0)
        report.slowest_s = _longest_gap(writer.events)

    def _await_rest(self, readers: list[Client]) -> None:
        """Wait until the readers' processes are almost idle, or until the time limit."""
        deadline = time.monotonic() + REST_PATIENCE_S
        used = sum(reader.processor_s for reader in readers)
        while time.monotonic() < deadline:
            time.sleep(REST_S)
            before, used = used, sum(reader.processor_s for reader in readers)
            if used - before < REST_S * REST_SHARE:
                return
        self.report.faults.append(f"the readers have not come to rest in {REST_PATIENCE_S:g} s")

    def _check(self, answer: dict[str, Any], least: dict[str, int], most: dict[str, int]) -> None:
        """Check a reader's rows: all of the loader's, and a prefix of each writer's."""
        report, found = self.report, answer["prefixes"]
        report.answers.append(answer)
        if answer["error"] is not None or found is None:
            report.faults.append(f"a reader that went on got {answer}")
            return
        if found.pop(str(LOADER)) != report.rows:
            report.faults.append(
                f"a reader that went on has not all of {report.rows} rows: {answer}"
            )
        for writer, rows in least.items():
            if not rows <= found.get(writer, 0) <= most[writer]:
                report.faults.append(
                    f"a reader has the first {found.get(writer, 0)} rows of writer {writer}, not"
                    f" {rows} (acknowledged before it asked) to {most[writer]} (sent by then)"
                )

    @contextlib.contextmanager
    def _phase(self, name: str, writer: Client) -> Any:
        first, began = writer.events[-1], time.monotonic()
        yield
        ended = time.monotonic()
        self.report.seconds[name] = ended - began
        last = self._after(writer, ended)
        batches = last["batches"] - first["batches"]
        self.report.rates[name] = batches / (last["at"] - first["at"])

    def _rate(self, writer: Client, seconds: float) -> float:
        first = writer.events[-1]
        last = self._after(writer, first["at"] + seconds)
        return float((last["batches"] - first["batches"]) / (last["at"] - first["at"]))

    def _after(self, writer: Client, at: float) -> dict[str, Any]:
        """Return the writers' first report after a time."""
        while writer.events[-1]["at"] < at:
            writer.hear()
        return next(event for event in writer.events if event["at"] >= at)


def _longest_gap(events: list[dict[str, Any]]) -> float:
    longest, moved = 0.0, events[0]
    for event in events[1:]:
        if event["batches"] > moved["batches"]:
            longest, moved = max(longest, event["at"] - moved["at"]), event
    return float(longest)


def _act(client: fl.FlightClient, name: str, **body: Any) -> list[dict[str, Any]]:
    action = fl.Action(name, json.dumps(body).encode())
    return [json.loads(result.body.to_pybytes()) for result in client.do_action(action)]
