"""One campaign in one place: clients write all the time, machines are lost, every row is counted.

After each loss tables are read through a client of all daemons, while clients write. Disks of lost
machines are found again and adopted. At the end the writers finish, everything is flushed, and the
client, the files and Spark must agree.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from random import Random

from ingester.client import ClientError
from tests.crash.reading import SparkFailed, StoreAt
from tests.crash.writer import name_of
from tests.drivers.daemon import DaemonEnded
from tests.fencing.pairs import Place
from tests.lost_machine import fleet as machines
from tests.lost_machine.adoptions import Adoptions
from tests.lost_machine.advice import Advice, ask
from tests.lost_machine.checks import Checks
from tests.lost_machine.clients import (
    AT_DISK,
    DiskWriter,
    RoamingWriter,
    SparkWriter,
    Surroundings,
    SyncTransactions,
    thread_of,
)
from tests.lost_machine.fleet import Fleet, Sleeper
from tests.lost_machine.homes import Homes
from tests.lost_machine.knocks import Knocks
from tests.lost_machine.losses import HOMES, Loss, plan, settings_of
from tests.lost_machine.report import Extent, Report
from tests.lost_machine.spark_process import SparkProcess
from tests.lost_machine.tables import (
    AT_STORE,
    DISK,
    DISK_HOME,
    DISK_KIND,
    HOME_OF,
    KEYED,
    KINDS,
    OWNERS,
    SHARED,
    SPARK,
    SYNC,
)

FINISHED_WITHIN_S = 120.0
LEVEL = "store"
FAR_SLOWER = 4
"""Each read at a store at a distance takes a request for each file, so there are fewer rows."""


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
        self._store = store
        self._extent = extent
        self._report = report
        self._random = Random(extent.seed)
        self._far = place.url.startswith("s3:")
        self._folder = place.folder / "ledgers"
        self._folder.mkdir(parents=True)
        self._stop = threading.Event()
        self._homes = Homes(HOMES)
        machine_place = replace(place, folder=place.folder / "machines")
        self._fleet = Fleet(machine_place, self._homes, report.findings)
        self._adoptions = Adoptions(self._fleet, report.findings)
        rows_per_s = extent.rows_per_s / (FAR_SLOWER if self._far else 1)
        self._around = Surroundings(
            self._folder, self._homes, Advice(), self._stop, LEVEL, rows_per_s
        )
        self._disk = DiskWriter(DISK, DISK_HOME, Random(f"{extent.seed}/disk"), self._around)
        self._knocks = Knocks(self._around, self._fleet.counts, report.findings)
        self._checks = Checks(self._folder, self._homes, self._disk, report)

    def run(self) -> None:
        """Run the campaign; it ends early, with findings, after a fault."""
        report, findings = self._report, self._report.findings
        report.histories.append(self._folder / "history")
        try:
            with ExitStack() as stack:
                stack.callback(self._checks.history.close)
                stack.callback(self._homes.close)
                stack.callback(self._fleet.close)
                stack.callback(self._stop.set)
                spark = None
                if self._extent.spark:
                    spark = stack.enter_context(SparkProcess(self._folder, *self._store))
                self._begin()
                threads = self._clients(spark)
                self._lose_machines()
                self._end(threads, spark)
        except (DaemonEnded, SparkFailed, TimeoutError, ClientError) as exc:
            findings.add(f"{type(exc).__name__}: {exc}")
        finally:
            self._add_up()

    def _begin(self) -> None:
        for home in range(HOMES):
            self._fleet.start(home, settings_of(self._random, far=self._far))
        for table in (*KINDS, DISK_KIND):
            endpoint = self._homes.wait(OWNERS.get(table.name, 0))
            level = {"ack": LEVEL} if table.name in AT_STORE else {}
            ask(endpoint, "create_table", **table.create_body(), **level)

    def _clients(self, spark: SparkProcess | None) -> list[threading.Thread]:
        extent, around = self._extent, self._around
        runs = {}
        for number, home in HOME_OF.items():
            random = Random(f"{extent.seed}/{number}")
            if number == SYNC:
                runs[number] = SyncTransactions(number, home, random, around).run
            elif number == SPARK and spark is not None:
                runs[number] = SparkWriter(number, home, random, around, spark).run
            elif number == DISK:
                runs[number] = self._disk.run
            else:
                tables = (*SHARED, KEYED) if home == OWNERS[KEYED] else SHARED
                runs[number] = RoamingWriter(number, home, tables, random, around).run
        threads = [thread_of(name_of(number), run, self._broken) for number, run in runs.items()]
        for thread in threads:
            thread.start()
        return threads

    def _broken(self, fault: str) -> None:
        """Note that a client failed, unless the campaign has ended before it."""
        if not self._stop.is_set() or not self._report.findings.faults:
            self._report.findings.add(fault)

    # --------------------------------------------------------------------------------- the losses

    def _lose_machines(self) -> None:
        extent, report, random = self._extent, self._report, self._random
        before = report.lost
        for loss in plan(extent.seed, extent.longest_s, far=self._far):
            if report.lost - before >= extent.losses or report.findings.faults:
                return
            if loss.successor == "adopted by daemons" and not extent.patient:
                loss = replace(loss, successor="adopted")
            time.sleep(loss.after_s)
            if random.random() < 0.3:
                self._check("while all serve", 1)
            self._checks.history.note(loss.kind)
            began = time.monotonic()
            self._suffer(loss)
            suffered = time.monotonic()
            report.losses[loss.kind] += 1
            where = f"after loss {report.lost} ({machines.name_of(loss.home)}: {loss.kind})"
            self._check(where, 1 if self._far else 2)
            if self._tell is not None:
                self._tell(
                    f"{report.losses.total()}: {suffered - began:.1f} s, checked in"
                    f" {time.monotonic() - suffered:.1f} s, {loss}"
                )
            self._fleet.reap(wait=False)
            self._adopt_disks(one=random.random() < 0.5)

    def _suffer(self, loss: Loss) -> None:
        fleet, home = self._fleet, loss.home
        if loss.crashed:
            fleet.crash(home, loss.settings)
            return
        endpoint = fleet.daemons[home].flight
        sleeper = fleet.lose(home, paused=loss.paused, found=loss.found)
        self._adopt(loss, endpoint)
        timer = None
        if sleeper is not None and loss.wakes == "starting":
            replaced = loss.successor != "restarted"
            delay_s = self._random.uniform(0.0, 0.6)
            timer = threading.Timer(delay_s, self._wake, (sleeper,), {"replaced": replaced})
            timer.start()
        for after_s in loss.again_s:
            fleet.lose_while_starting(home, loss.settings, after_s)
        fleet.start(home, loss.settings)
        self._count_reported(home)
        if timer is not None:
            timer.join()
        if sleeper is not None and loss.wakes == "serving":
            self._wake(sleeper)
        for other in fleet.sleepers:
            if other is not sleeper and other.woken_at is None and self._random.random() < 0.5:
                self._wake(other)

    def _adopt(self, loss: Loss, endpoint: str) -> None:
        """Let the log be adopted before a successor starts, and read while nobody has its id."""
        began = time.monotonic()
        if loss.successor == "adopted":
            self._adoptions.from_store(loss.home)
            self._report.adoptions_s.append(time.monotonic() - began)
        elif loss.successor == "adopted by daemons":
            self._adoptions.by_daemons(loss.home)
            self._report.waits_s.append(time.monotonic() - began)
        else:
            return
        # The others cannot answer for a keyed table without its owner.
        away = [table for table in KINDS if OWNERS.get(table.name) != loss.home]
        away = self._random.sample(away, 1 if self._far else 3)
        where = f"{loss.successor}, {machines.name_of(loss.home)} is away"
        self._checks.check(where, but=endpoint, tables=away, disk=not self._far)

    def _count_reported(self, home: int) -> None:
        """Count the operations that a successor reports as lost with the disk.

        An epoch that has replayed a log on its disk also reports what that log had shipped.
        """
        [status] = ask(self._homes.wait(home), "status")
        for one in status.get("store_log", {}).get("lost", []):
            at_disk = one["table"] == AT_DISK
            what = "operations reported as lost" if at_disk else "operations reported, not lost"
            self._fleet.counts[what] += one["operations"]
            if not at_disk and home not in self._fleet.crashed:
                self._report.findings.add(f"{machines.name_of(home)} reports as lost: {one}")

    def _wake(self, sleeper: Sleeper, *, replaced: bool = True) -> None:
        """Continue a process and write to it."""
        self._fleet.wake(sleeper)
        self._knocks.knock(sleeper.daemon, replaced=replaced)

    def _adopt_disks(self, *, one: bool) -> None:
        """Adopt a disk that was found again, or all of them."""
        disks = self._fleet.disks
        for _ in range(min(1, len(disks)) if one else len(disks)):
            disk = disks.pop(0)
            self._adoptions.of_disk(disk)
            self._checks.found_again(disk.endpoint)
            self._check(f"after {disk.data_dir.name} was found and adopted", 1)

    def _check(self, where: str, tables: int) -> None:
        sample = self._random.sample(KINDS, tables)
        self._checks.check(where, tables=sample, disk=self._random.random() < 0.5)

    # ------------------------------------------------------------------------------------ the end

    def _end(self, threads: Sequence[threading.Thread], spark: SparkProcess | None) -> None:
        """Let writers finish, flush, and read in every way."""
        report, checks = self._report, self._checks
        for sleeper in self._fleet.sleepers:
            if sleeper.woken_at is None:
                self._wake(sleeper)
        self._stop.set()
        give_up_at = time.monotonic() + FINISHED_WITHIN_S
        for thread in threads:
            thread.join(max(0.0, give_up_at - time.monotonic()))
            if thread.is_alive():
                report.findings.add(f"{thread.name} did not finish within {FINISHED_WITHIN_S:g} s")
        self._fleet.reap(wait=True)
        self._adopt_disks(one=False)
        for name, rows in checks.check("at the end"):
            checks.check_states(name, rows, durable=False)
        for home in range(HOMES):
            ask(self._homes.wait(home), "persist", timeout_s=120)
        for name, rows in checks.check("flushed"):
            checks.check_states(name, rows, durable=True)
            report.read_at_end["all daemons"] += rows.num_rows
        checks.check_stored("files", store=self._store)
        if spark is not None:
            checks.check_stored("spark", spark.read)
        for home, daemon in self._fleet.daemons.items():
            if (code := daemon.terminate()) != 0:
                report.findings.add(f"{machines.name_of(home)}: SIGTERM with all flushed: {code}")

    def _add_up(self) -> None:
        report, advice = self._report, self._around.advice
        report.refusals += advice.codes
        report.restarts_s += self._fleet.restarts_s
        for useless in advice.useless:
            report.findings.add(f"a refusal does not say what to do: {useless}")
        self._checks.add_up()
        report.counts += self._fleet.counts
