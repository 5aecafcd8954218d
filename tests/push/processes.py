"""The processes of a push, started again and again: its job and its leader.

    job      begins the push and writes its rows: ``tests.push.job``, or Spark's own
    leader   an ``ingester.pushes`` controller: ``tests.push.leader``

A process ends by ``kill -9``: it kills itself at some change in a store. Spark's job cannot do
so and is killed some time after its start.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq

from tests.drivers.daemon import ROOT
from tests.drivers.warm import Process, warm
from tests.push.job import PARTITIONS, REPLAY
from tests.push.rows import NAMESPACE, TABLE, edition

CHANGES = {"leader": 30, "job": 18}
"""A process ends at one of its first changes: a push takes about a hundred."""
SPARK_LIVES_S = (3.0, 25.0)
"""The range of times after which a Spark job is killed."""


class Running:
    """One process; ``killed`` says how it was killed, once it has ended."""

    def __init__(self, who: str, process: Process, kill_at: float | None = None) -> None:
        self.who = who
        self.killed = ""
        self._process = process
        self._kill_at = kill_at

    def has_ended(self) -> bool:
        """Return whether the process has ended; kill it first if its time has come.

        Raises:
            AssertionError: the process failed by itself.
        """
        is_due = self._kill_at is not None and time.monotonic() > self._kill_at
        if is_due and self._process.poll() is None:
            self.killed = f"{self.who} of Spark"
            self._process.kill()
        if self._process.poll() is None:
            return False
        assert self._process.stdout is not None
        said = self._process.stdout.read().decode().strip()
        self._process.stdout.close()
        if self._process.wait() == 0 or self.killed:
            return True
        assert said.startswith("killed"), f"{self.who} has failed: {said}"
        self.killed = f"{self.who} {_kind(said)}"
        return True

    def tell_stacks(self) -> None:
        """Let a leader write its threads' stacks to its log."""
        self._process.send_signal(signal.SIGUSR1)
        time.sleep(1.0)

    def end(self) -> None:
        """Kill the process if it still runs."""
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


class Starter:
    """Starts processes of pushes with one configuration; their logs are in a file of the folder."""

    def __init__(self, config_file: Path, rng: random.Random) -> None:
        self.log = config_file.with_name("processes.stderr")
        self._config = str(config_file)
        self._rng = rng

    def leader(self, push_id: str, *, dies: bool) -> Running:
        """Start a controller that leads the push."""
        return Running(
            "leader", self._warm("tests.push.leader", push_id, *self._fate("leader", dies))
        )

    def job(self, push_id: str, number: int, *, bad: bool, dies: bool) -> Running:
        """Start a job that writes an edition, without Spark."""
        how = (str(number), "bad" if bad else "good")
        return Running("job", self._warm("tests.push.job", push_id, *how, *self._fate("job", dies)))

    def spark_job(self, push_id: str, number: int, *, bad: bool, dies: bool) -> Running:
        """Start a job that writes an edition with Spark, as ``spark-submit`` would."""
        rows = self.log.with_name(f"edition-{number}.parquet")
        if not rows.exists():
            pq.write_table(edition(number, bad=bad), rows)
        command = [sys.executable, "-m", "ingester.spark.push", "--config", self._config]
        command += [NAMESPACE, TABLE, "--parquet", str(rows), "--push-id", push_id, "--no-lead"]
        command += ["--partition-by", *PARTITIONS, "--replay-since", REPLAY]
        lives_s = self._rng.uniform(*SPARK_LIVES_S) if dies else None
        with self.log.open("ab") as stderr:
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=ROOT,
                env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
            )
        return Running("job", process, None if lives_s is None else time.monotonic() + lives_s)

    def _fate(self, who: str, dies: bool) -> tuple[str, str]:
        if not dies:
            return "0", "before"
        return str(self._rng.randint(1, CHANGES[who])), self._rng.choice(["before", "after"])

    def _warm(self, module: str, *arguments: str) -> Process:
        with self.log.open("ab") as stderr:
            return warm().popen([module, self._config, *arguments], os.environ, ROOT, stderr)


def _kind(said: str) -> str:
    """Return ``killed after <path>`` without the parts that differ from push to push."""
    _, when, path = said.splitlines()[0].split(" ", 2)
    parts = path.split("/")
    if parts[0].startswith("_"):
        last = "" if parts[-1].isdecimal() or len(parts) < 3 else f"/{parts[-1]}"
        return f"{when} {parts[0]}{last}"
    folder = parts[2] if parts[2].startswith("_") else parts[3]
    return f"{when} {folder}"
