"""One campaign in one world: start, check, write, trouble, kill, repeat; at the end, read all.

A check never races with what it checks. After a restart no client writes until everything was
read. While writers write, a query must show the rows that were acknowledged before it began.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from functools import partial
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from tests.crash.checking import TableCheck
from tests.crash.ending import Ending
from tests.crash.kills import BASE_SETTINGS, LONG_PAUSE, SHORT_PAUSE, Kill, Trouble, plan
from tests.crash.reading import Reader, call
from tests.crash.report import Extent, Report
from tests.crash.rows import TABLES
from tests.crash.session import ERRORS, Refused, Unclear, raise_what_it_means
from tests.crash.states import StateCheck
from tests.crash.worlds import World
from tests.crash.writer import CLIENT_FAILED
from tests.crash.writers import Writers, WritersStuck
from tests.drivers.daemon import Daemon, DaemonEnded

CLAIMED_WITHIN_S = 30.0
WELL_WITHIN_S = 15.0


class Campaign:
    """Runs in a world, whose remains afterwards explain what happened."""

    def __init__(self, world: World, extent: Extent, report: Report) -> None:
        self.report = report
        self._world = world
        self._extent = extent
        self._random = Random(extent.seed)
        self._settings: dict[str, object] = dict(BASE_SETTINGS)
        self._daemon: Daemon | None = None
        self._killed = 0
        """Counts of this world only."""

    def run(self) -> None:
        """Run the whole campaign. It ends early, with findings, if the daemon does not run."""
        extent, began = self._extent, time.monotonic()
        ledgers = self._world.folder / "ledgers"
        ledgers.mkdir()
        try:
            with Writers(
                ledgers,
                seed=extent.seed,
                writers=extent.writers,
                processes=extent.processes,
                rows_per_s=extent.rows_per_s,
            ) as writers:
                try:
                    self._reader = Reader(writers.history, "campaign")
                    self._rounds(writers, began)
                    self._world.heal()
                    Ending(self._world, self._start, writers, self._reader, self.report).run()
                finally:
                    writers.update()
                    self._add_up(writers)
        except DaemonEnded as exc:
            self.report.findings.add(f"the daemon did not start: {exc}")
        except (*ERRORS, Unclear, WritersStuck) as exc:
            self.report.findings.add(f"{self._state_of_daemon()}: {exc}")
        finally:
            if self._daemon is not None:
                self._daemon.kill()
            self._world.heal()
            self.report.troubles.update(self._world.counts)

    def _rounds(self, writers: Writers, began: float) -> None:
        extent, report = self._extent, self.report
        for kill in plan(extent.seed, extent.longest_s, self._world.troubles):
            enough = time.monotonic() - began >= extent.seconds
            if (enough and self._killed >= extent.kills) or report.findings.more:
                return
            daemon = self._start()
            self._world.heal()
            self._check_all(writers, daemon)
            writers.go(daemon.flight)
            killed_at = self._live(writers, daemon, kill)
            self._check_ends(writers.wait_idle(), killed_at)
            self._settings = kill.settings
            self._kill_again(writers, kill)

    def _start(self) -> Daemon:
        """Start a daemon that serves. An unhealed world may prevent that at first."""
        began = time.monotonic()
        launch, suffered = self._world.launch(self._settings), self._world.suffers
        try:
            if suffered:
                # The daemon may be waiting for its store, which is healed now.
                healer = threading.Timer(self._random.uniform(1.0, 4.0), self._world.heal)
                healer.start()
            self._daemon = launch.start()
        except DaemonEnded as exc:
            if not suffered:
                raise
            self.report.refused_starts += 1
            self.report.last_refusal = exc.stderr.splitlines()[-1][:1000]
            self._world.heal()
            self._daemon = launch.start()
        self.report.restarts_s.append(time.monotonic() - began)
        if not self._killed:
            for table in TABLES:
                call(self._daemon.flight, "create_table", **table.create_body())
        return self._daemon

    def _live(self, writers: Writers, daemon: Daemon, kill: Kill) -> float:
        """Let clients work, read, cause troubles, and kill; return the time of the kill."""
        began = time.monotonic()
        kill_at = began + kill.after_s
        if kill.trouble is not None:
            self._look_on(writers, daemon, began + kill.trouble.at_s)
            self._befall(writers, daemon, kill.trouble)
        if kill.trouble is None or not kill.trouble.outlasts:
            self._look_on(writers, daemon, kill_at - 0.5)
        if kill.persist_before_s is not None:
            time.sleep(max(0.0, kill_at - time.monotonic() - kill.persist_before_s))
            threading.Thread(target=_persist_until_killed, args=(daemon.flight,)).start()
        time.sleep(max(0.0, kill_at - time.monotonic()))
        killed_at = time.monotonic()
        if (code := daemon.process.poll()) is not None:
            self.report.findings.add(f"exit code {code} before the kill, {self._state_of_daemon()}")
        daemon.kill()
        self._count(writers, kill.kind)
        return killed_at

    def _look_on(self, writers: Writers, daemon: Daemon, until: float) -> None:
        while until - time.monotonic() > 0.3:
            self._check_live(writers, daemon)
            time.sleep(self._random.uniform(0.0, 0.5))
        time.sleep(max(0.0, until - time.monotonic()))

    def _befall(self, writers: Writers, daemon: Daemon, trouble: Trouble) -> None:
        writers.history.note(trouble.kind)
        if trouble.kind in (SHORT_PAUSE, LONG_PAUSE):
            self.report.troubles[trouble.kind] += 1
            os.kill(daemon.pid, signal.SIGSTOP)
            time.sleep(trouble.for_s)
            os.kill(daemon.pid, signal.SIGCONT)
            return
        self._world.befall(trouble.kind)
        time.sleep(trouble.for_s)
        if not trouble.outlasts:
            self._world.heal()

    def _count(self, writers: Writers, kind: str) -> None:
        writers.history.note("kill")
        self._killed += 1
        self.report.kills[kind] += 1

    def _state_of_daemon(self) -> str:
        """Return whether the daemon runs or how it ended, with the last lines of its log."""
        assert self._daemon is not None
        code = self._daemon.process.poll()
        last = self._daemon.stderr_file.read_text(errors="replace").splitlines()[-4:]
        lines = " | ".join(last)
        return f"the daemon {'runs' if code is None else f'ended with {code}'}, log: {lines}"

    def _kill_again(self, writers: Writers, kill: Kill) -> None:
        """Kill the next processes before they serve."""
        launch = self._world.launch(self._settings)
        for delays, wait in (
            (kill.again_after_claim_s, self._wait_for_claim),
            (kill.again_after_start_s, lambda offset, process: None),
        ):
            for delay_s in delays:
                offset = launch.stderr_file.stat().st_size
                process = launch.spawn()
                try:
                    wait(offset, process)
                    time.sleep(delay_s)
                finally:
                    refused = process.poll() is not None
                    process.kill()
                    process.wait()
                    assert process.stdout is not None
                    process.stdout.close()
                if refused and self._world.suffers:
                    self.report.refused_starts += 1
                elif refused:
                    self.report.findings.add(f"a start ended with {process.returncode}")
                else:
                    self._count(writers, "while starting")

    def _wait_for_claim(self, offset: int, process: Any) -> None:
        """Return when the process has logged that its epoch is claimed: replay comes next."""
        log = self._world.launch({}).stderr_file
        give_up_at = time.monotonic() + CLAIMED_WITHIN_S
        with log.open("rb") as file:
            file.seek(offset)
            text = b""
            while b"epoch claimed" not in text and time.monotonic() < give_up_at:
                text += file.read()
                if process.poll() is not None or (self._world.suffers and b"store not" in text):
                    return
                time.sleep(0.002)

    def _check_all(self, writers: Writers, daemon: Daemon) -> None:
        """Check all tables while no client writes."""
        began = time.monotonic()
        for table in TABLES:
            check = TableCheck(table.name, writers.ledgers, f"after kill {self._killed}")
            rows = self._read(daemon, table.name)
            check.check(rows, self.report.findings, settle=True)
            states = StateCheck(table.name, check.where, partial(call, daemon.flight))
            states.check(rows, writers.ledgers, self.report.findings)
        self.report.checks_s.append(time.monotonic() - began)

    def _check_live(self, writers: Writers, daemon: Daemon) -> None:
        """Check one table while writers write."""
        table = self._random.choice(TABLES).name
        writers.update()
        check = TableCheck(table, writers.ledgers, f"while writing, kill {self._killed}")
        rows = self._read(daemon, table)
        writers.update()
        check.check(rows, self.report.findings, settle=False)

    def _read(self, daemon: Daemon, table: str) -> pa.Table:
        """Read all rows; a store that has just been healed may still refuse a few reads."""
        give_up_at = time.monotonic() + WELL_WITHIN_S
        while True:
            try:
                return self._reader.read(daemon.flight, table)
            except ERRORS as exc:
                if time.monotonic() > give_up_at:
                    raise
                with contextlib.suppress(Refused):
                    raise_what_it_means(exc, exc)

    def _check_ends(self, ends: list[dict[str, Any]], killed_at: float) -> None:
        for end in ends:
            error = end["error"]
            if error is not None and (end["at"] < killed_at or error.startswith(CLIENT_FAILED)):
                self.report.findings.add(
                    f"{end['idle']} was cut off {killed_at - end['at']:.3f} s before kill"
                    f" {self._killed}: {error}"
                )

    def _add_up(self, writers: Writers) -> None:
        self.report.acknowledged_rows += writers.acknowledged_rows
        for ledger in writers.ledgers:
            self.report.sent_rows += sum(batches.rows for batches in ledger.tables.values())
            for complaint in ledger.complaints:
                self.report.findings.add(complaint)


def _persist_until_killed(endpoint: str) -> None:
    with contextlib.suppress(fl.FlightError, pa.ArrowException, OSError):
        call(endpoint, "persist", timeout_s=30)
