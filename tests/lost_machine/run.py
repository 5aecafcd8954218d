"""Campaigns in several places, one after the other; the histories are judged offline."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

from tests.crash.reading import ROOT
from tests.lost_machine.campaign import Campaign
from tests.lost_machine.places import place_named
from tests.lost_machine.report import Extent, Report


def run(
    folder: Path, extent: Extent, places: tuple[str, ...], tell: Callable[[str], None] | None = None
) -> Report:
    """Run a campaign in each place, with its share of the losses; ``folder`` keeps the evidence."""
    report, random = Report(), Random(extent.seed)
    for index, name in enumerate(places):
        share = -(-(extent.losses - report.lost) // (len(places) - index))
        part = replace(extent, losses=share, seed=random.randrange(1 << 30))
        with place_named(name, folder / f"{index}-{name}", part.seed) as (place, store):
            Campaign(place, store, part, report, tell).run()
        if report.findings.faults:
            return report  # the end was not read, so the history is not complete
    for history in report.histories:
        _judge(history, report)
    return report


def _judge(history: Path, report: Report) -> None:
    command = [sys.executable, "-m", "tests.crash.check", str(history)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    lines = done.stdout.splitlines() or [done.stderr[-2000:]]
    report.verdicts.append(lines[0].rpartition("/history: ")[2])
    if done.returncode:
        for line in lines[1:] or lines:
            report.findings.add(f"history: {line.strip()}")
