"""Adoption of lost logs: by the command or other daemons, and of disks that are found again."""

from __future__ import annotations

import json
import os
import shutil
import time
from functools import cached_property
from typing import Any

from tests.crash.checking import Findings
from tests.crash.reading import ROOT
from tests.drivers.warm import warm
from tests.lost_machine.advice import ask
from tests.lost_machine.fleet import Fleet, FoundDisk, name_of
from tests.lost_machine.losses import ADOPT_AFTER_S
from tests.lost_machine.tables import OWNERS

WITHIN_S = 120.0
NO_ANSWER = 4
"""The exit code when the store does not answer; the message says to run the command again."""


class Adoptions:
    """Adopts logs of a fleet's daemons."""

    def __init__(self, fleet: Fleet, findings: Findings) -> None:
        self._fleet = fleet
        self._findings = findings

    def from_store(self, home: int) -> None:
        """Commit the log objects of a lost daemon: ``ingester wal adopt --from-store ID``."""
        self._adopt(f"adoption of {name_of(home)}", "--from-store", name_of(home))

    def by_daemons(self, home: int) -> None:
        """Return when the other daemons have adopted the log of a lost one."""
        name, began = f"store:{name_of(home)}", time.monotonic()
        told: list[str | None] = []
        while time.monotonic() - began < WITHIN_S:
            time.sleep(0.5)
            if time.monotonic() - began < ADOPT_AFTER_S + 1:
                continue
            told = [
                {each["directory"]: each["state"] for each in status["adoptions"]}.get(name)
                for daemon in self._fleet.daemons.values()
                for status in ask(daemon.flight, "status")
            ]
            if {"adopted", "absent"} & {*told} and "adopting" not in told:
                self._fleet.counts["logs adopted by daemons"] += "adopted" in told
                return
        self._findings.add(f"{name} was not adopted within {WITHIN_S:g} s: {told}")

    def of_disk(self, disk: FoundDisk) -> None:
        """Commit the log on a disk that was found again, while its successor runs."""
        done = self._adopt(f"adoption of {disk.data_dir}", str(disk.data_dir))
        self._fleet.counts["adopted disks"] += 1
        for table in done.get("tables", []):
            self._fleet.counts["rows that only found disks had"] += table["rows"]
            if table["refused"] is None:
                continue
            # The order of its rows and those of the successor is unknown.
            self._fleet.counts["rows of keyed tables that were refused"] += table["refused_rows"]
            if table["table"] not in OWNERS:
                self._findings.add(f"adoption of {disk.data_dir}: {table}")
        shutil.rmtree(disk.data_dir)

    def _adopt(self, what: str, *arguments: str) -> dict[str, Any]:
        command = ["wal", "adopt", *arguments, "--store", self._fleet.place.url, "--json"]
        give_up_at = time.monotonic() + WITHIN_S
        done = warm().run(command, self._environment, ROOT)
        while done.returncode == NO_ANSWER and time.monotonic() < give_up_at:
            self._fleet.counts["adoptions that the store did not answer"] += 1
            done = warm().run(command, self._environment, ROOT)
        report: dict[str, Any] = json.loads(done.stdout or b"{}")
        refused = [each for each in report.get("tables", []) if each["refused"] is not None]
        if done.returncode and not (done.returncode == 1 and refused):
            self._findings.add(
                f"{what} ended with {done.returncode}: {done.stderr.decode()[-1500:]}"
            )
        return report

    @cached_property
    def _environment(self) -> dict[str, str]:
        """The environment of a command that reaches the store."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("INGESTER_")}
        return {**kept, **self._fleet.place.environment}
