"""Two daemons that commit to one table at the same time, for a number of rounds.

    write to both, flush both, continuously ─▶ stop ─▶ flush ─▶ count, three ways ─▶ repeat …

Each daemon learns of the other's versions only when its own commit is refused. Without the
refusal it would overwrite a version of the other, whose rows would be lost: from its buffers,
its log and the table.
"""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pyarrow.parquet as pq

from persist.manifest import Manifest
from persist.store import open_store
from tests.drivers.daemon import ROOT, Daemon, Launch
from tests.power.lives import Tally
from tests.power.rows import (
    ERRORS,
    TABLE,
    by_writer,
    create_table,
    not_once,
    query_all,
)
from tests.power.source import Source

DAEMONS = 2
ROUND_S = 0.7
SEES_WITHIN_S = 5.0
"""Time limit for seeing the other daemon's last commit: a daemon checks every 10 ms."""
SETTINGS: dict[str, object] = {"persist__max_age": "1h", "manifest__refresh": "10ms"}


class RootedLaunch(Launch):
    """Starts a daemon from the code in another folder."""

    def __init__(self, data_dir: Path, root: Path, settings: dict[str, object]) -> None:
        super().__init__(data_dir, {}, (), settings)
        self.root = root


class Race:
    """Rounds on one store."""

    def __init__(self, folder: Path, seed: int, root: Path = ROOT) -> None:
        self.tally = Tally()
        self._store_url = f"file://{folder}/store"
        self._launches = [
            RootedLaunch(
                folder / f"daemon-{number}",
                root,
                {**SETTINGS, "id": f"racer-{number}", "store": self._store_url},
            )
            for number in range(DAEMONS)
        ]
        self._sources = [Source(number, seed) for number in range(DAEMONS)]

    def run(self, rounds: int) -> Tally:
        """Run rounds until their number is reached or one ends with a fault."""
        with contextlib.ExitStack() as stack:
            daemons = [stack.enter_context(launch.start()) for launch in self._launches]
            clients = [stack.enter_context(fl.connect(daemon.flight)) for daemon in daemons]
            create_table(clients[0])
            while self.tally.lives < rounds and not self.tally.faults:
                self.tally.lives += 1
                self._race(daemons)
                self._check(clients)
        return self.tally

    @property
    def _acknowledged(self) -> int:
        return sum(source.acknowledged for source in self._sources)

    def _race(self, daemons: list[Daemon]) -> None:
        ended = threading.Event()
        threads = [
            threading.Thread(target=work, args=(number, daemon, ended))
            for number, daemon in enumerate(daemons)
            for work in (self._write, self._persist)
        ]
        for thread in threads:
            thread.start()
        ended.wait(ROUND_S)
        ended.set()
        for thread in threads:
            thread.join()
        self.tally.acknowledged = self._acknowledged
        self.tally.operations = sum(source.operations for source in self._sources)

    def _write(self, writer: int, daemon: Daemon, ended: threading.Event) -> None:
        try:
            with fl.connect(daemon.flight) as client:
                self._sources[writer].write(client, ended)
        except ERRORS as exc:
            self.tally.faults.append(f"writer {writer}: {exc}")

    def _persist(self, number: int, daemon: Daemon, ended: threading.Event) -> None:
        with contextlib.suppress(*ERRORS), fl.connect(daemon.flight) as client:
            while not ended.is_set():
                list(client.do_action(fl.Action("persist", b"{}")))

    def _check(self, clients: list[fl.FlightClient]) -> None:
        """Check that every acknowledged row exists once: at each daemon, and in the files."""
        try:
            for client in clients:
                list(client.do_action(fl.Action("persist", b"{}")))
            for number, client in enumerate(clients):
                found = self._seen_by(client)
                self._count(f"daemon {number}", found)
            self._count("files", self._in_files())
        except Exception as exc:
            self.tally.faults.append(f"what was written cannot be read: {exc!r}")

    def _seen_by(self, client: fl.FlightClient) -> pa.Table:
        """Return a daemon's rows once it has read the other's last version."""
        until = time.monotonic() + SEES_WITHIN_S
        while (found := query_all(client)).num_rows < self._acknowledged:
            if time.monotonic() > until:
                break
        return found

    def _in_files(self) -> pa.Table:
        manifest = Manifest(open_store(self._store_url), *TABLE)
        paths = [manifest.object_path(path) for path in manifest.load().files]
        found = (manifest.store.get(path) for path in paths)
        tables = [pq.ParquetFile(pa.BufferReader(data)).read(["w", "n"]) for data in found]
        return pa.concat_tables(tables)

    def _count(self, where: str, table: pa.Table) -> None:
        for writer, numbers in enumerate(by_writer(table, DAEMONS)):
            problems = not_once(writer, numbers)
            acknowledged = self._sources[writer].acknowledged
            if len(numbers) != acknowledged:
                missing = f"{acknowledged} rows were acknowledged"
                problems.append(f"writer {writer}: {missing}, {len(numbers)} are there")
            self.tally.faults += [f"{where}: {problem}" for problem in problems]
