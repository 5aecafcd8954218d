"""The storm: rounds of steps and kills, each followed by a comparison of every table.

    sessions run, processes are killed ─▶ all pause ─▶ wait until every table is right ─▶ …

After the last step, the number of wrong tables must fall at least every ``PATIENCE_S`` and be
zero by ``LONGEST_S``; otherwise the fault is reported with the steps that touched the table.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.drivers.warm import warm
from tests.postgres.cluster import Cluster
from tests.postgres.replicating import replicating, steady_daemon
from tests.postgres.storm import transactions, values
from tests.postgres.storm.judging import Verdict, judge
from tests.postgres.storm.kills import Killer
from tests.postgres.storm.model import Catalog
from tests.postgres.storm.sessions import Session, Step

NAMESPACE, PUBLICATION = "storm", "ingester"
PATIENCE_S = 90.0
LONGEST_S = 300.0
SHOWN_STEPS = 25
LOG = ("CREATE SCHEMA storm_log", "CREATE TABLE storm_log.done (name text PRIMARY KEY)")
PUBLICATIONS: tuple[str | None, ...] = (
    None,
    f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES WITH (publish_via_partition_root = true)",
    f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES",
)
"""The replicator creates the publication (None), or it exists: by partition root or not."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The length and intensity of a storm."""

    seconds: float
    seed: int = 1
    kills: int = 0
    sessions: int = 3
    round_s: float = 30.0
    pause_s: float = 0.05
    """The pause of each session between its transactions."""
    publication: int = 0
    """The index in :data:`PUBLICATIONS`."""


class Fault(AssertionError):
    """Raised when a copy is wrong, or when a process has ended unexpectedly."""


@dataclass(slots=True)
class Report:
    """The steps, kills and verdicts of a storm."""

    steps: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    rounds: list[tuple[float, Verdict]] = field(default_factory=list)
    """For each round, the seconds until all tables were right and the final verdict."""


class Storm:
    """A source, its copy, and the sessions and kills that disturb them."""

    def __init__(
        self, plan: Plan, cluster: Cluster, folder: Path, say: Callable[[str], None]
    ) -> None:
        self.report = Report()
        self._plan, self._cluster, self._folder, self._say = plan, cluster, folder, say
        self._log: deque[Step] = deque(maxlen=200_000)
        self._stack = ExitStack()
        cluster.run(*values.SETUP, *transactions.SHARED, *LOG)
        published = PUBLICATIONS[plan.publication]
        cluster.run(*([published] if published else []))
        pause_s = plan.pause_s
        self._sessions = [
            Session(cluster.dsn, Catalog(number, plan.seed), pause_s, self._log.append)
            for number in range(plan.sessions)
        ]
        daemon = steady_daemon(
            folder / "daemon",
            store=f"file://{folder}/store",
            replication__max_lag="5s",
            memory__limit="1GiB",
        )
        self._stack.callback(self._end)
        self._replicator = self._stack.enter_context(
            replicating(cluster.dsn, daemon.flight, NAMESPACE, folder)
        )
        self._killer = Killer(cluster, daemon, self._replicator, plan.seed)

    def __enter__(self) -> Storm:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _end(self) -> None:
        for session in self._sessions:
            session.end()
        self._killer.daemon.kill()

    def run(self) -> Report:
        """Run all rounds.

        Raises:
            Fault: a copy stayed wrong, or a process failed.
        """
        rounds = max(1, round(self._plan.seconds / self._plan.round_s))
        for number in range(rounds):
            share = self._plan.kills * (number + 1) // rounds
            self._blow(self._plan.seconds / rounds, share - self.report.kills.total())
            self._settle()
            self._say(f"round {number + 1}: {self._told()}")
        self._verify()
        return self.report

    def _blow(self, seconds: float, kills: int) -> None:
        """Run all sessions for a time, kill processes, and draw no DDL in the last third."""
        began = time.monotonic()
        for session in self._sessions:
            session.calm = False
            session.go_on()
        for number in range(kills + 1):
            time.sleep(max(0.0, began + seconds * (number + 1) / (kills + 1) - time.monotonic()))
            for session in self._sessions:
                session.calm = time.monotonic() - began > seconds * 2 / 3
            if number < kills:
                self._say(f"  kill: {self._killer.kill()}")
                self.report.kills = self._killer.kills
        for session in self._sessions:
            session.pause()

    def _settle(self) -> None:
        """Wait until every table is right."""
        began = better_at = time.monotonic()
        fewest: int | None = None
        while True:
            code = self._replicator.process.poll()
            if code is not None:
                raise Fault(f"the replicator ended: {code}\n{self._replicator.said[-6000:]}")
            verdict = self._judge()
            if verdict.right:
                self.report.rounds.append((time.monotonic() - began, verdict))
                return
            wrong = len(verdict.different) + len(verdict.without_reason)
            if fewest is None or wrong < fewest:
                fewest, better_at = wrong, time.monotonic()
            now = time.monotonic()
            if now - better_at > PATIENCE_S or now - began > LONGEST_S:
                raise Fault(self._told_fault(verdict))
            time.sleep(0.5)

    def _judge(self) -> Verdict:
        return judge(self._cluster.dsn, self._killer.daemon, NAMESPACE, PUBLICATION)

    def _verify(self) -> None:
        """Check that the product's own comparison agrees."""
        dsn, flight = self._cluster.dsn, self._killer.daemon.flight
        command = ["replicate", "verify", dsn, NAMESPACE, "--ignore-set-aside", "--json"]
        done = warm().run([*command, "--endpoint", flight], {}, Path("/"), timeout_s=300)
        if done.returncode != 0:
            said = (done.stdout[-4000:] + done.stderr[-4000:]).decode(errors="replace")
            raise Fault(f"verify ends with {done.returncode}, though all is equal: {said}")

    def _told(self) -> str:
        self.report.steps = len(self._log)
        self.report.outcomes = Counter()
        for session in self._sessions:
            self.report.outcomes.update(session.outcomes)
        seconds, verdict = self.report.rounds[-1]
        return f"{self.report.steps} steps, right after {seconds:.1f} s: {verdict}"

    def _told_fault(self, verdict: Verdict) -> str:
        said = [str(verdict)]
        for name in [*verdict.different, *verdict.without_reason]:
            said.append(f"steps that touched {name}:")
            said += [str(step) for step in self._steps_of(name)[-SHOWN_STEPS:]]
        said.append(f"the replicator said:\n{self._replicator.said[-4000:]}")
        return "\n".join(said)

    def _steps_of(self, name: str) -> list[Step]:
        for session in self._sessions:
            for table in (*session.catalog.tables.values(), *transactions.shared_tables()):
                if f"{table.schema}.{table.name}" == name:
                    return [
                        step
                        for step in self._log
                        if table.uid in step.touched
                        and (table.uid < 0 or step.session == session.catalog.number)
                    ]
        bare = name.partition(".")[2]
        return [step for step in self._log if any(f'"{bare}"' in text for text in step.statements)]
