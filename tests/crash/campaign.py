"""One campaign: start, check, write, kill, and again; at the end persist and read in every way.

Law of this file: a check never races with what it checks. After a restart nobody writes until
everything was read; while writers write, what was noted before a query began is what it must show.
"""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from tests.crash.checking import TableCheck
from tests.crash.kills import BASE_SETTINGS, Kill, plan
from tests.crash.reading import (
    SparkFailed,
    call,
    files_of,
    read_daemon,
    read_files,
    read_spark,
)
from tests.crash.report import Extent, Report
from tests.crash.rows import TABLES
from tests.crash.writers import Writers, WritersStuck
from tests.daemon import Daemon, DaemonEnded, Launch

CLAIMED_WITHIN_S = 30.0


class Campaign:
    """Runs in ``folder``; what is left there afterwards tells what happened."""

    def __init__(self, folder: Path, extent: Extent) -> None:
        self.report = Report()
        self._folder = folder
        self._extent = extent
        self._random = Random(extent.seed)
        self._settings: dict[str, object] = dict(BASE_SETTINGS)
        self._daemon: Daemon | None = None

    @property
    def data_dir(self) -> Path:
        """The daemon's folder; its log is beside it."""
        return self._folder / "daemon"

    @property
    def store_url(self) -> str:
        """Where the files are."""
        return f"file://{self.data_dir / 'store'}"

    def run(self) -> Report:
        """The whole campaign. Ends early, with findings, where the daemon does not run."""
        extent, began = self._extent, time.monotonic()
        ledgers = self._folder / "ledgers"
        ledgers.mkdir(parents=True)
        try:
            with Writers(
                ledgers,
                seed=extent.seed,
                writers=extent.writers,
                processes=extent.processes,
                rows_per_s=extent.rows_per_s,
            ) as writers:
                try:
                    self._rounds(writers, began)
                    self._finish(writers)
                finally:
                    writers.update()
                    self._add_up(writers)
        except DaemonEnded as exc:
            self.report.findings.add(f"the daemon did not start: {exc}")
        except (fl.FlightError, pa.ArrowException, WritersStuck) as exc:
            self.report.findings.add(f"{self._state_of_daemon()}: {exc}")
        finally:
            self.report.seconds = time.monotonic() - began
            if self._daemon is not None:
                self._daemon.kill()
        return self.report

    def _rounds(self, writers: Writers, began: float) -> None:
        extent, report = self._extent, self.report
        for kill in plan(extent.seed, extent.longest_s):
            enough = time.monotonic() - began >= extent.seconds
            if (enough and report.killed >= extent.kills) or report.findings.more:
                return
            daemon = self._start()
            self._check_all(writers, f"after kill {report.killed}", daemon)
            writers.go(daemon.flight)
            killed_at = self._kill(writers, daemon, kill)
            self._check_ends(writers.wait_idle(), killed_at)
            self._settings = kill.settings
            self._kill_again(kill)

    def _start(self) -> Daemon:
        began = time.monotonic()
        self._daemon = Launch(self.data_dir, {}, (), self._settings).start()
        self.report.restarts_s.append(time.monotonic() - began)
        if not self.report.killed:
            for table in TABLES:
                call(self._daemon.flight, "create_table", **table.create_body())
        return self._daemon

    def _kill(self, writers: Writers, daemon: Daemon, kill: Kill) -> float:
        """Let writers write, look on once or twice, kill; when it was killed."""
        kill_at = time.monotonic() + kill.after_s
        while kill_at - time.monotonic() > 1.0:
            self._check_live(writers, daemon)
            time.sleep(self._random.uniform(0.0, 0.5))
        if kill.persist_before_s is not None:
            time.sleep(max(0.0, kill_at - time.monotonic() - kill.persist_before_s))
            threading.Thread(target=_persist_until_killed, args=(daemon.flight,)).start()
        time.sleep(max(0.0, kill_at - time.monotonic()))
        killed_at = time.monotonic()
        if (code := daemon.process.poll()) is not None:
            self.report.findings.add(f"exit code {code} before the kill, {self._state_of_daemon()}")
        daemon.kill()
        self.report.count(kill.kind)
        return killed_at

    def _state_of_daemon(self) -> str:
        """Whether the daemon still runs, or how it ended; and the last lines that it logged."""
        assert self._daemon is not None
        code = self._daemon.process.poll()
        last = self._daemon.stderr_file.read_text(errors="replace").splitlines()[-4:]
        lines = " | ".join(last)
        return f"the daemon {'runs' if code is None else f'ended with {code}'}, log: {lines}"

    def _kill_again(self, kill: Kill) -> None:
        """Kill the next processes before they serve."""
        launch = Launch(self.data_dir, {}, (), self._settings)
        for delays, wait in (
            (kill.again_after_claim_s, self._wait_for_claim),
            (kill.again_after_start_s, lambda offset: None),
        ):
            for delay_s in delays:
                offset = launch.stderr_file.stat().st_size
                process = launch.spawn()
                try:
                    wait(offset)
                    time.sleep(delay_s)
                finally:
                    process.kill()
                    process.wait()
                    assert process.stdout is not None
                    process.stdout.close()
                self.report.count("while starting")

    def _wait_for_claim(self, offset: int) -> None:
        """Return when the process has logged that its epoch is claimed: replay comes next."""
        log = Launch(self.data_dir, {}, (), {}).stderr_file
        give_up_at = time.monotonic() + CLAIMED_WITHIN_S
        with log.open("rb") as file:
            file.seek(offset)
            text = b""
            while b"epoch claimed" not in text and time.monotonic() < give_up_at:
                text += file.read()
                time.sleep(0.002)

    def _check_all(self, writers: Writers, where: str, daemon: Daemon) -> None:
        """Nobody writes: everything is as it will stay."""
        began = time.monotonic()
        for table in TABLES:
            check = TableCheck(table.name, writers.ledgers, where)
            rows = read_daemon(daemon.flight, table.name)
            check.check(rows, self.report.findings, settle=True)
        self.report.checks_s.append(time.monotonic() - began)

    def _check_live(self, writers: Writers, daemon: Daemon) -> None:
        """One table while writers write."""
        table = self._random.choice(TABLES).name
        writers.update()
        check = TableCheck(table, writers.ledgers, f"while writing, kill {self.report.killed}")
        rows = read_daemon(daemon.flight, table)
        writers.update()
        check.check(rows, self.report.findings, settle=False)

    def _check_ends(self, ends: list[dict[str, Any]], killed_at: float) -> None:
        for end in ends:
            if end["error"] is not None and end["at"] < killed_at:
                self.report.findings.add(
                    f"writer {end['idle']} was cut off {killed_at - end['at']:.3f} s before kill"
                    f" {self.report.killed}: {end['error']}"
                )

    # The end: no kill follows

    def _finish(self, writers: Writers) -> None:
        daemon = self._start()
        self._check_all(writers, "after the last kill", daemon)
        writers.go(daemon.flight)
        writers.pause()
        for end in writers.wait_idle():
            if end["error"] is not None:
                self.report.findings.add(f"writer {end['idle']} at the end: {end['error']}")
        self._check_resent(writers)
        self._check_all(writers, "with all resent", daemon)
        call(daemon.flight, "persist", timeout_s=120)
        self._check_all(writers, "persisted", daemon)
        self._check_origins(writers, daemon)
        self._read_in(writers, "pyarrow, persisted", lambda t: read_files(self.store_url, t))
        self._stop(daemon)
        self._read_in(writers, "pyarrow, stopped", lambda t: read_files(self.store_url, t))
        if self._extent.spark:
            self._read_with_spark(writers)
        self._check_all(writers, "after a clean stop", self._start())

    def _read_with_spark(self, writers: Writers) -> None:
        try:
            by_spark = read_spark(self.store_url)
        except SparkFailed as exc:
            self.report.findings.add(f"reading with Spark: {exc}")
        else:
            self._read_in(writers, "spark", by_spark.__getitem__)

    def _stop(self, daemon: Daemon) -> None:
        code = daemon.terminate()
        if code != 0:
            self.report.findings.add(f"SIGTERM with everything persisted: exit code {code}")
        self.report.files = sum(len(files_of(self.store_url, table.name)) for table in TABLES)

    def _check_resent(self, writers: Writers) -> None:
        for ledger in writers.ledgers:
            if not ledger.resends:
                continue
            for table, batches in ledger.tables.items():
                unknown = sum(1 for fate in batches.fates if fate == 0)
                if unknown:
                    self.report.findings.add(
                        f"writer {ledger.writer}, {table}: {unknown} batches without an answer"
                        " although they were sent again"
                    )

    def _check_origins(self, writers: Writers, daemon: Daemon) -> None:
        known = {each["origin"]: each for each in call(daemon.flight, "origins")}
        for ledger in writers.ledgers:
            if not ledger.resends or ledger.last_sequence < 0:
                continue
            origin = known.get(f"writer-{ledger.writer}", {})
            for name in ("memory_sequence", "durable_sequence"):
                if origin.get(name) != ledger.last_sequence:
                    self.report.findings.add(
                        f"writer {ledger.writer}: everything is persisted, the last sequence is"
                        f" {ledger.last_sequence}, {name} is {origin.get(name)}"
                    )

    def _read_in(self, writers: Writers, how: str, read: Any) -> None:
        total = 0
        for table in TABLES:
            check = TableCheck(table.name, writers.ledgers, how)
            rows: pa.Table = read(table.name)
            check.check(rows, self.report.findings, settle=True)
            total += rows.num_rows
        self.report.readers.append(f"{how}: {total:,} rows")

    def _add_up(self, writers: Writers) -> None:
        self.report.acknowledged_rows = writers.acknowledged_rows
        for ledger in writers.ledgers:
            self.report.sent_rows += sum(batches.rows for batches in ledger.tables.values())
            for complaint in ledger.complaints:
                self.report.findings.add(complaint)


def _persist_until_killed(endpoint: str) -> None:
    with contextlib.suppress(fl.FlightError, pa.ArrowException, OSError):
        call(endpoint, "persist", timeout_s=30)
