"""An operator's timer jobs: Spark compacts, and clean-up deletes replaced files.

A job may fail, as timer jobs do, and the next one makes up for it; each job's result is
reported. Jobs have the lowest priority, as they share the machine with the daemons.
"""

from __future__ import annotations

import os
import subprocess
import threading
from dataclasses import dataclass, field

from tests.drivers.daemon import ROOT
from tests.show.realm import Realm

SPARK = "--master local[1] --driver-memory 1g --conf spark.ui.enabled=false pyspark-shell"
RETAIN = "2m"
"""How long a replaced version is kept. Readers here finish within seconds."""
GRACE = "5m"
"""Minimum age of a file that no kept version lists. Uploads here are committed within seconds."""
JOB_S = 600.0


@dataclass
class Done:
    """The results of the jobs."""

    compacted: int = 0
    cleaned: int = 0
    failed: list[str] = field(default_factory=list)

    def said(self) -> str:
        """A summary for people."""
        return (
            f"{self.compacted} compactions by Spark, {self.cleaned} clean-ups, "
            f"{len(self.failed)} of them failed" + "".join(f": {each}" for each in self.failed[:3])
        )


class Upkeep:
    """A thread that compacts all tables each ``every_s`` during the ``with`` block; 0 for never."""

    def __init__(self, realm: Realm, namespace: str, every_s: float) -> None:
        self.done = Done()
        self._realm = realm
        self._namespace = namespace
        self._every_s = every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while self._every_s and not self._over.wait(self._every_s):
            compact, clean = self._realm.upkeep_jobs(self._namespace, RETAIN, GRACE)
            if self._job("compact", compact):
                self.done.compacted += 1
            if self._job("gc", clean):
                self.done.cleaned += 1

    def _job(self, name: str, command: list[str]) -> bool:
        job = subprocess.Popen(
            ["nice", "-n", "19", *command],
            cwd=ROOT,
            env=os.environ | {"PYSPARK_SUBMIT_ARGS": SPARK},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            _, told = job.communicate(timeout=JOB_S)
        except subprocess.TimeoutExpired:
            job.kill()
            _, told = job.communicate()
        if job.returncode != 0:
            last = told.strip().splitlines()[-1:] or [""]
            self.done.failed.append(f"{name} ended with {job.returncode}: {last[0][:300]}")
        return job.returncode == 0

    def __enter__(self) -> Upkeep:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
