"""Campaigns in several worlds; then Spark reads all tables, and the histories are judged offline.

Another process judges each history, with nothing but the history as input.
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from random import Random

from tests.crash.campaign import Campaign
from tests.crash.checking import TableCheck
from tests.crash.history import History, now_s
from tests.crash.ledger import WriterLedger, has_origin
from tests.crash.reading import ROOT, Reader, SparkFailed, read_spark
from tests.crash.report import Extent, Report
from tests.crash.rows import TABLES
from tests.crash.worlds import WORLDS, World


def run(folder: Path, extent: Extent) -> Report:
    """Run all campaigns, one after the other; ``folder`` keeps the evidence."""
    began, report, worlds = time.monotonic(), Report(), []
    random = Random(extent.seed)
    with ExitStack() as stack:
        for index, (name, kills) in enumerate(_shares(extent)):
            made = WORLDS[name](folder / f"{index}-{name}", Random(random.random()))
            world = stack.enter_context(made)
            share = extent.seconds / len(extent.worlds)
            part = replace(extent, seed=random.randrange(1 << 30), kills=kills, seconds=share)
            Campaign(world, part, report).run()
            worlds.append(world)
            print(f"{world.folder.name}: {report.killed} kills so far", flush=True)
            if report.findings.faults:
                break
        else:
            if extent.spark:
                _read_with_spark(worlds, report, extent)
        if report.findings.faults:
            for world in worlds:
                world.keep_evidence()
    for world in worlds:
        _judge(world.folder / "ledgers" / "history", report)
    report.seconds = time.monotonic() - began
    return report


def _shares(extent: Extent) -> list[tuple[str, int]]:
    """Give each world at least its share of the kills: a life on S3 takes longer."""
    weights = [1 if name == "s3" else 3 for name in extent.worlds]
    return [
        (name, -(-extent.kills * weight // sum(weights)))
        for name, weight in zip(extent.worlds, weights, strict=True)
    ]


def _read_with_spark(worlds: list[World], report: Report, extent: Extent) -> None:
    sent = now_s()
    try:
        found = read_spark([world.store for world in worlds], [table.name for table in TABLES])
    except SparkFailed as exc:
        report.findings.add(f"reading with Spark: {exc}")
        return
    for world, tables in zip(worlds, found, strict=True):
        ledgers = _ledgers(world, extent)
        history = History(world.folder / "ledgers" / "history")
        reader = Reader(history, "spark")
        for table, rows in tables.items():
            check = TableCheck(table, ledgers, f"spark, {world.folder.name}")
            check.check(rows, report.findings, settle=True)
            reader.saw(table, rows, sent, None, how="spark")
            report.read_at_end["spark"] += rows.num_rows
        history.close()


def _ledgers(world: World, extent: Extent) -> list[WriterLedger]:
    """Read the ledgers again: rows from Spark are compared with the writers' notes alone."""
    ledgers = []
    for number in range(extent.writers):
        path = world.folder / "ledgers" / f"writer-{number}.ledger"
        ledger = WriterLedger(path, number, resends=has_origin(number))
        ledger.update()
        ledgers.append(ledger)
    return ledgers


def _judge(history: Path, report: Report) -> None:
    command = [sys.executable, "-m", "tests.crash.check", str(history)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    lines = done.stdout.splitlines() or [done.stderr[-2000:]]
    report.history.append(lines[0].removeprefix(str(history.parent.parent.parent) + "/"))
    if done.returncode:
        for line in lines[1:] or lines:
            report.findings.add(f"history: {line.strip()}")
