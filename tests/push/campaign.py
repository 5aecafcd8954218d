"""Good and bad pushes one after another, whose leaders and jobs are killed.

    push ─▶ [ job and leader, killed at some change, and restarted ] until it is over ─▶ judge

Whichever process is killed, a good push goes live in every region and a bad one in none. Readers
and writers run all the time, and none of them may fail.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from ingester.client import Client
from ingester.pushes.record import PushRecord
from ingester.pushes.states import Status
from ingester.pushes.store import PushNotFound, PushStore
from ingester.spark.session import local_session
from tests.drivers.waiting import until
from tests.push.processes import Running, Starter
from tests.push.reading import Reader, by_daemon, by_duckdb, by_spark, by_store
from tests.push.rows import COLUMNS, NAMESPACE, TABLE, seen
from tests.push.streaming import Streaming
from tests.push.world import World, three_regions

OVER_WITHIN_S = 90.0
SPARK_S = 300.0
"""Spark starts slowly, and starts again after each kill."""
KILLS = (3, 8)
"""The least and the most kills in one push."""


@dataclass
class Report:
    """The counts and records of a campaign."""

    pushes: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    """By process, and by the change before or after the kill."""
    stages: Counter[str] = field(default_factory=Counter)
    """By the regions' statuses at the kill."""
    records: dict[str, PushRecord] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    answers: dict[str, Counter[int]] = field(default_factory=dict)


class Campaign:
    """Three regions, their readers and writers, and the pushes through them."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        say: Callable[[str], None] = lambda text: None,
        delay_s: float = 1.0,
    ) -> None:
        self._stack = ExitStack()
        self.world: World = self._stack.enter_context(three_regions(folder, delay_s))
        self.report = Report()
        self._rng = random.Random(seed)
        self._say = say
        self._pushes = PushStore(self.world.regions[0].store)
        self._streams = {each.name: Streaming(each.daemon.flight) for each in self.world.regions}
        self._readers: list[Reader] = []
        self._edition = self._good = 0
        self._starter = Starter(self.world.config_file, self._rng)

    def __enter__(self) -> Campaign:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self._streams.values():
            stream.end()
        self._stack.close()

    # ------------------------------------------------------------------------------- pushes

    def begin(self, *, spark: bool = False) -> None:
        """Push the first edition, which creates the table, and start readers and writers."""
        self.push(kills=0)
        for stream in self._streams.values():
            stream.begin()
        follower = self.world.follower()
        self._stack.callback(follower.wait)
        self._stack.callback(follower.kill)
        readers = []
        for region in self.world.regions:
            readers.append(Reader(f"{region.name} by daemon", by_daemon(region.daemon.flight)))
            readers.append(Reader(f"{region.name} by store", by_store(region.store), 0.3))
        copied = Reader("asia by DuckDB", by_duckdb(self.world.copy), 0.2)
        until(self.world.copy.exists, "the follower's file")
        until(lambda: _filled(copied), "the follower's copy")
        self._readers = [*readers, copied]
        if spark:
            session = local_session("pushes", cores=1, shuffle_partitions=1)
            self._stack.callback(session.stop)
            for settings in self.world.config.regions:
                name = f"{settings.name} by Spark"
                self._readers.append(Reader(name, by_spark(session, settings), 15.0))
        for reader in self._readers:
            reader.begin()

    def push(self, kills: int, *, bad: bool = False, spark: bool = False) -> PushRecord:
        """Push an edition with ``kills`` kills, and check that it ends correctly."""
        self._edition += 1
        push_id = f"{'bad' if bad else 'good'}-{self._edition}"
        start_job = self._starter.spark_job if spark else self._starter.job
        running: dict[str, Running] = {}
        within_s = OVER_WITHIN_S + 10 * kills + (SPARK_S if spark else 0)
        left, deadline = {"job", "leader"}, time.monotonic() + within_s
        try:
            while not self._is_over(push_id):
                if time.monotonic() > deadline:
                    raise AssertionError(self._stuck(push_id, running))
                self._check()
                for who in sorted(left - set(running)):
                    if who == "leader" and not self._is_begun(push_id):
                        continue
                    dies, kills = kills > 0, kills - 1
                    if who == "leader":
                        running[who] = self._starter.leader(push_id, dies=dies)
                    else:
                        running[who] = start_job(push_id, self._edition, bad=bad, dies=dies)
                self._look(running, left, push_id)
                time.sleep(0.02)
        finally:
            for process in running.values():
                process.end()
        record = self._pushes.newest(push_id).record
        self._judge(record, bad=bad)
        return record

    def push_and_kill(self, kills: int, *, spark: bool = False) -> None:
        """Push good and bad editions until ``kills`` processes were killed."""
        while (left := kills - self.report.kills.total()) > 0:
            some = min(left, self._rng.randint(*KILLS))
            self.push(some, bad=self._rng.random() < 0.4, spark=spark and self._rng.random() < 0.3)

    def _look(self, running: dict[str, Running], left: set[str], push_id: str) -> None:
        """Remove ended processes; a job that ended by itself is not restarted."""
        for who, process in list(running.items()):
            if not process.has_ended():
                continue
            del running[who]
            if not process.killed:
                left.discard(who)
                continue
            self.report.kills[process.killed] += 1
            self.report.stages.update(self._standing(push_id))

    def finish(self) -> Report:
        """Stop readers and writers, and return the report."""
        for reader in self._readers:
            reader.end()
            self.report.answers[reader.name] = reader.editions
        for name, stream in self._streams.items():
            stream.pause()
            self.report.rows[name] = stream.rows
        return self.report

    # ------------------------------------------------------------------------------- judging

    def _judge(self, record: PushRecord, *, bad: bool) -> None:
        wanted = Status.ROLLED_BACK if bad else Status.SERVING
        assert record.status is wanted, _told(record)
        statuses = [each.status for each in record.regions]
        if bad:
            assert statuses[0] is Status.ROLLED_BACK, _told(record)
            assert set(statuses[1:]) == {Status.ABORTED}, _told(record)
        else:
            assert set(statuses) == {Status.SERVING}, _told(record)
            self._good = self._edition
        self.report.pushes[record.status.value] += 1
        self.report.records[record.push_id] = record
        self._say(f"{record.push_id}: {record.status.value}, {self.report.kills.total()} kills")
        if not self._readers:
            return
        for region in self.world.regions:
            stream = self._streams[region.name]
            stream.pause()
            stream.pushed(record, region.name)
            self._compare(region.name, region.daemon.flight, self._good)
            stream.go_on()
        self._check()

    def _compare(self, name: str, endpoint: str, good: int) -> None:
        """Check that each acknowledged row is present once, in memory and after a flush."""
        must, may = self._streams[name].bounds()
        with Client(endpoint) as client:
            until(
                lambda: seen(client.query(NAMESPACE, TABLE, COLUMNS)).edition == good,
                f"{name} to serve edition {good}",
            )
            found = seen(client.query(NAMESPACE, TABLE, COLUMNS)).streamed
            (done,) = client.persist(NAMESPACE, TABLE)
            filed = client.query(NAMESPACE, TABLE, COLUMNS, version=done.manifest_version)
        for where, rows in (("at the daemon", found), ("in files", seen(filed).streamed)):
            missing, extra = sorted(must - rows), sorted(rows - may)
            assert not missing, f"{name} {where}: rows {missing[:5]} ({len(missing)}) are missing"
            assert not extra, f"{name} {where}: rows {extra[:5]} ({len(extra)}) are too many"

    def _check(self) -> None:
        for reader in self._readers:
            reader.check()
        for stream in self._streams.values():
            stream.check()

    def _stuck(self, push_id: str, running: dict[str, Running]) -> str:
        """Describe the push's state and its leader's stacks."""
        if "leader" in running:
            running["leader"].tell_stacks()
        said = self._starter.log.read_text()[-6000:]
        return f"{push_id} does not end: {self._standing(push_id)}, {sorted(running)}\n{said}"

    def _is_begun(self, push_id: str) -> bool:
        try:
            self._pushes.newest(push_id)
        except PushNotFound:
            return False
        return True

    def _is_over(self, push_id: str) -> bool:
        return self._is_begun(push_id) and self._pushes.newest(push_id).record.over

    def _standing(self, push_id: str) -> list[str]:
        if not self._is_begun(push_id):
            return ["not begun"]
        record = self._pushes.newest(push_id).record
        return [f"{each.name} {each.stage.value}" for each in record.regions]


def _told(record: PushRecord) -> str:
    events = [f"{event.at:%H:%M:%S.%f} {event.region} {event.what}" for event in record.history]
    return "\n".join([f"{record.push_id} is {record.status.value}:", *events])


def _filled(reader: Reader) -> bool:
    try:
        reader.ask()
    except Exception:  # the first fill is not complete
        return False
    reader.editions.clear()
    return True
