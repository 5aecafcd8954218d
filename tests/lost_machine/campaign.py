"""One campaign in one place: clients write all the time, machines are lost, every row is counted.

After each loss all tables are read through a client of all daemons, while clients write. A read
must have every row that was acknowledged before it began, once, and no row that was not sent. At
the end the writers finish, everything is flushed, and the client, the files and Spark must agree.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa

from ingester.client import Client, ClientError
from tests.crash.checking import Findings, TableCheck, counts_by_writer
from tests.crash.history import History, now_s
from tests.crash.ledger import WriterLedger, has_origin
from tests.crash.reading import COLUMNS, Reader, SparkFailed, StoreAt, call
from tests.crash.rows import NAMESPACE, TABLES, TableKind
from tests.crash.states import StateCheck
from tests.crash.writer import name_of
from tests.drivers.daemon import DaemonEnded
from tests.fencing.pairs import Place
from tests.lost_machine import fleet as machines
from tests.lost_machine.advice import Advice
from tests.lost_machine.clients import (
    AT_DISK,
    BY_SPARK,
    SYNCED,
    DiskWriter,
    RoamingWriter,
    SparkWriter,
    Surroundings,
    SyncTransactions,
    thread_of,
)
from tests.lost_machine.fleet import Fleet, Sleeper
from tests.lost_machine.homes import Homes
from tests.lost_machine.losses import HOMES, Loss, plan, settings_of
from tests.lost_machine.spark_process import SparkProcess

READ_WITHIN_S = 60.0
FINISHED_WITHIN_S = 120.0
SHARED = ("by_day", "plain")
KEYED = "keyed"
KEYED_KIND = {"partition_by": ("identity(host)",), "primary_key": ("host", "time", "writer")}
KINDS: tuple[TableKind, ...] = (
    *(table for table in TABLES if table.name in (*SHARED, KEYED)),
    TableKind(SYNCED, **KEYED_KIND),
    TableKind(BY_SPARK, **KEYED_KIND),
)
AT_STORE = ("plain", KEYED)
"""Tables that are created at the level ``store``; writers to the others ask for it themselves."""
OWNERS = {KEYED: 0, SYNCED: 1, BY_SPARK: 2}
"""The daemon that each keyed table's writers use."""
SPARK, SYNC, DISK, DISK_HOME = 6, 5, 8, 1
"""The numbers of the clients that are no plain writers."""
HOME_OF = {0: 0, 3: 0, 1: 1, 4: 1, SYNC: 1, 2: 2, SPARK: 2, 7: 2}


@dataclass(frozen=True, slots=True)
class Extent:
    """The extent of a campaign."""

    seed: int
    losses: int
    wire: bool = True
    adopts: bool = True
    ships: bool = True
    """Whether clients ask for the level ``store``; otherwise machines only crash."""
    spark: bool = True
    """Whether Spark writes, and reads at the end; otherwise one more plain writer does."""
    longest_s: float = 1.5
    """The longest time between two losses."""
    rows_per_s: float = 200.0
    """Of each writer."""


@dataclass(slots=True)
class Report:
    """The results of campaigns."""

    findings: Findings = field(default_factory=Findings)
    losses: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    restarts_s: list[float] = field(default_factory=list)
    adoptions_s: list[float] = field(default_factory=list)
    reads_again: Counter[str] = field(default_factory=Counter)
    """Reads that were refused and tried again, by the error."""
    acknowledged_rows: int = 0
    read_at_end: Counter[str] = field(default_factory=Counter)
    histories: list[Path] = field(default_factory=list)
    verdicts: list[str] = field(default_factory=list)
    """Of the offline checker on the histories."""

    @property
    def lost(self) -> int:
        """The number of lost machines; crashes that kept the disk are not losses."""
        return sum(number for kind, number in self.losses.items() if kind != "crashed")


class Campaign:
    """Runs in a place. ``store`` reaches its store without faults."""

    def __init__(
        self,
        place: Place,
        store: StoreAt,
        extent: Extent,
        report: Report,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self._tell = tell
        self._place = replace(place, folder=place.folder / "machines")
        self._store = store
        self._extent = extent
        self._report = report
        self._random = Random(extent.seed)
        self._folder = place.folder / "ledgers"
        self._folder.mkdir(parents=True)
        self._special = {SYNC, SPARK} if extent.spark else {SYNC}
        self._stop = threading.Event()
        self._homes = Homes(HOMES)
        self._fleet = Fleet(self._place, self._homes, HOMES, report.findings)
        level = "store" if extent.ships and extent.wire else None
        self._around = Surroundings(
            self._folder, self._homes, Advice(), self._stop, level, extent.rows_per_s
        )
        self._disk = DiskWriter(DISK, DISK_HOME, Random(f"{extent.seed}/disk"), self._around)
        self._disk_rows_gone: set[int] = set()
        self._ledgers: list[WriterLedger] = []
        self._connected: tuple[list[str], Client] | None = None

    def run(self) -> None:
        """Run the campaign; it ends early, with findings, after a fault."""
        report, findings = self._report, self._report.findings
        report.histories.append(self._folder / "history")
        history = History(self._folder / "history")
        self._reader = Reader(history, "campaign")
        try:
            with ExitStack() as stack:
                stack.callback(history.close)
                stack.callback(self._homes.close)
                stack.callback(self._fleet.close)
                stack.callback(self._stop.set)
                spark = None
                if self._extent.spark:
                    spark = stack.enter_context(SparkProcess(self._folder, *self._store))
                self._begin()
                threads = self._clients(spark)
                self._lose_machines(history)
                self._end(threads, spark)
        except (DaemonEnded, SparkFailed, TimeoutError, ClientError) as exc:
            findings.add(f"{type(exc).__name__}: {exc}")
        finally:
            self._add_up()

    # ---------------------------------------------------------------------------------- the parts

    def _begin(self) -> None:
        ships = self._extent.ships
        for home in range(HOMES):
            self._fleet.start(home, settings_of(self._random, ships=ships))
        for table in KINDS:
            endpoint = self._homes.wait(OWNERS.get(table.name, 0))
            level = (
                {"ack": "store"} if ships and self._extent.wire and table.name in AT_STORE else {}
            )
            call(endpoint, "create_table", **table.create_body(), **level)
        disk = TableKind(AT_DISK, ("day(time)",))
        call(self._homes.wait(0), "create_table", **disk.create_body())

    def _clients(self, spark: SparkProcess | None) -> list[threading.Thread]:
        extent, around = self._extent, self._around
        runs = {}
        for number, home in HOME_OF.items():
            random = Random(f"{extent.seed}/{number}")
            if number == SYNC:
                runs[number] = SyncTransactions(number, home, random, around).run
            elif number == SPARK and spark is not None:
                runs[number] = SparkWriter(number, home, random, around, spark).run
            else:
                tables = (*SHARED, KEYED) if home == OWNERS[KEYED] else SHARED
                runs[number] = RoamingWriter(number, home, tables, random, around).run
        runs[DISK] = self._disk.run
        self._ledgers = [
            WriterLedger(
                self._folder / f"{name_of(number)}.ledger",
                number,
                resends=number in self._special or has_origin(number),
            )
            for number in HOME_OF
        ]
        threads = [thread_of(name_of(number), run, self._broken) for number, run in runs.items()]
        for thread in threads:
            thread.start()
        return threads

    def _broken(self, fault: str) -> None:
        """Note that a client failed, unless the campaign has ended before it."""
        if not self._stop.is_set() or not self._report.findings.faults:
            self._report.findings.add(fault)

    def _lose_machines(self, history: History) -> None:
        extent, report = self._extent, self._report
        before = report.lost
        for loss in plan(extent.seed, extent.longest_s, ships=extent.ships):
            if report.lost - before >= extent.losses or report.findings.faults:
                return
            if not extent.ships and report.losses["crashed"] >= extent.losses:
                return
            time.sleep(loss.after_s)
            if self._random.random() < 0.3:
                self._check_all("while all serve", tables=self._random.sample(KINDS, 2))
            history.note(loss.kind)
            began = time.monotonic()
            self._suffer(loss)
            suffered = time.monotonic()
            report.losses[loss.kind] += 1
            where = f"after loss {report.lost} ({machines.name_of(loss.home)}: {loss.kind})"
            self._check_all(where, tables=self._random.sample(KINDS, 3))
            if self._tell is not None:
                checked_s = time.monotonic() - suffered
                self._tell(
                    f"{report.losses.total()}: {suffered - began:.1f} s, checked in"
                    f" {checked_s:.1f} s, {loss}"
                )
            self._fleet.reap(wait=False)

    def _suffer(self, loss: Loss) -> None:
        fleet, home = self._fleet, loss.home
        if loss.crashed:
            fleet.crash(home, loss.settings)
            return
        endpoint = fleet.daemons[home].flight
        sleeper = fleet.lose(home, paused=loss.paused)
        if loss.adopted and self._extent.adopts:
            began = time.monotonic()
            fleet.adopt(home)
            self._report.adoptions_s.append(time.monotonic() - began)
            # The others cannot answer for a keyed table without its owner.
            away = [table for table in KINDS if OWNERS.get(table.name) != home][:3]
            where = f"adopted, {machines.name_of(home)} is away"
            self._check_all(where, but=endpoint, tables=away)
        timer = None
        if sleeper is not None and loss.wakes == "starting":
            timer = threading.Timer(self._random.uniform(0.0, 0.6), fleet.wake, (sleeper,))
            timer.start()
        for after_s in loss.again_s:
            fleet.lose_while_starting(home, loss.settings, after_s)
        fleet.start(home, loss.settings)
        self._count_reported(home)
        if timer is not None:
            timer.join()
        self._wake(sleeper, loss.wakes)

    def _count_reported(self, home: int) -> None:
        """Count the operations that a successor reports as lost with the disk."""
        [status] = call(self._homes.wait(home), "status")
        lost = status.get("store_log", {}).get("lost", [])
        for one in lost:
            self._report.counts["operations reported as lost"] += one["operations"]
            if one["table"] != AT_DISK:
                self._report.findings.add(f"{machines.name_of(home)} reports as lost: {one}")

    def _wake(self, sleeper: Sleeper | None, wakes: str) -> None:
        """Wake this process if it is time, or those of earlier losses."""
        if sleeper is not None and wakes == "serving":
            self._fleet.wake(sleeper)
        for other in self._fleet.sleepers:
            if other is not sleeper and other.woken_at is None and self._random.random() < 0.5:
                self._fleet.wake(other)

    # --------------------------------------------------------------------------------- the checks

    def _check_all(
        self, where: str, *, but: str | None = None, tables: Sequence[TableKind] = KINDS
    ) -> list[tuple[str, pa.Table]]:
        """Check tables while clients write; a row that was lost is missing in later checks too."""
        found = []
        for table in tables:
            self._update()
            check = TableCheck(table.name, self._ledgers, where)
            rows = self._read(table.name, but)
            self._update()
            check.check(rows, self._report.findings, settle=False)
            found.append((table.name, rows))
        self._check_disk(where, but)
        return found

    def _read(self, table: str, but: str | None = None) -> pa.Table:
        """Read a table at all daemons, in one consistent answer."""
        give_up_at = time.monotonic() + READ_WITHIN_S
        while True:
            sent = now_s()
            try:
                rows = self._client(but).query(NAMESPACE, table, COLUMNS, timeout_s=30.0)
            except ClientError as exc:
                if time.monotonic() > give_up_at:
                    raise
                self._report.reads_again[type(exc).__name__] += 1
                time.sleep(0.1)
                continue
            if table != AT_DISK:  # whose rows may be lost
                self._reader.saw(table, rows, sent, None, how="all daemons")
            return rows

    def _client(self, but: str | None = None) -> Client:
        """A client of all daemons that serve."""
        endpoints = [one for one in self._homes.endpoints if one != but]
        if self._connected is None or self._connected[0] != endpoints:
            if self._connected is not None:
                self._connected[1].close()
            self._connected = endpoints, Client(endpoints, timeout_s=10.0)
        return self._connected[1]

    def _check_disk(self, where: str, but: str | None) -> None:
        """Rows at ``disk`` may be lost with their machine, but those in files are there once."""
        notes, findings = self._disk.notes, self._report.findings
        serving = set(self._homes.endpoints) - {but}
        must = {start for start, by in notes.by.items() if by in serving or start in notes.stored}
        known = len(notes.starts)
        rows = self._read(AT_DISK, but)
        there = counts_by_writer(rows).get(DISK, np.zeros(0, np.int64))
        for start, count in zip(notes.starts[:known], notes.counts[:known], strict=True):
            counts = {int(n) for n in there[start : start + count]} or {0}
            if len(there) < start + count:
                counts.add(0)
            if counts != {1} and start in must and serving == set(self._homes.endpoints) - {but}:
                findings.add(f"{where}, {AT_DISK}: batch {start}+{count} is lost with no machine")
            if max(counts) > 1:
                findings.add(f"{where}, {AT_DISK}: batch {start}+{count} is there {counts} times")
            if 0 in counts and start in notes.by:
                self._disk_rows_gone.add(start)

    def _update(self) -> None:
        for ledger in self._ledgers:
            ledger.update()

    def _end(self, threads: Sequence[threading.Thread], spark: SparkProcess | None) -> None:
        """Let writers finish, flush, and read in every way."""
        report = self._report
        for sleeper in self._fleet.sleepers:
            if sleeper.woken_at is None:
                self._fleet.wake(sleeper)
        self._stop.set()
        give_up_at = time.monotonic() + FINISHED_WITHIN_S
        for thread in threads:
            thread.join(max(0.0, give_up_at - time.monotonic()))
            if thread.is_alive():
                report.findings.add(f"{thread.name} did not finish within {FINISHED_WITHIN_S:g} s")
        self._fleet.reap(wait=True)
        for name, rows in self._check_all("at the end"):
            self._check_states(name, rows, durable=False)
        for home in range(HOMES):
            call(self._homes.wait(home), "persist", timeout_s=120)
        for name, rows in self._check_all("flushed"):
            self._check_states(name, rows, durable=True)
            report.read_at_end["all daemons"] += rows.num_rows
        self._read_stored("files", partial(self._reader.read_files, self._store))
        if spark is not None:
            self._read_stored("spark", spark.read)
        for home, daemon in self._fleet.daemons.items():
            if (code := daemon.terminate()) != 0:
                report.findings.add(f"{machines.name_of(home)}: SIGTERM with all flushed: {code}")

    def _read_stored(self, how: str, read: Callable[[str], pa.Table]) -> None:
        """Read the files of all tables, which have everything now."""
        for table in KINDS:
            check = TableCheck(table.name, self._ledgers, how)
            sent = now_s()
            rows = read(table.name)
            check.check(rows, self._report.findings, settle=True)
            self._report.read_at_end[how] += rows.num_rows
            if how != "files":  # which records its reads
                self._reader.saw(table.name, rows, sent, None, how=how)

    def _check_states(self, table: str, rows: pa.Table, *, durable: bool) -> None:
        """Check the states of the writers of each daemon there."""
        if table not in (*SHARED, KEYED):
            return
        for home in range(HOMES):
            ledgers = [
                ledger
                for ledger in self._ledgers
                if HOME_OF[ledger.writer] == home and ledger.writer not in self._special
            ]
            ask = partial(call, self._homes.wait(home))
            states = StateCheck(table, f"states, durable: {durable}", ask)
            states.check(rows, ledgers, self._report.findings, durable=durable)

    def _add_up(self) -> None:
        report, advice = self._report, self._around.advice
        report.refusals += advice.codes
        report.counts += self._fleet.counts
        report.counts["batches at disk"] += len(self._disk.notes.by)
        report.counts["batches at disk that were lost"] += len(self._disk_rows_gone)
        report.restarts_s += self._fleet.restarts_s
        for useless in advice.useless:
            report.findings.add(f"a refusal does not say what to do: {useless}")
        for ledger in self._ledgers:
            ledger.update()
            report.acknowledged_rows += ledger.acknowledged_rows
            for complaint in ledger.complaints:
                report.findings.add(complaint)
