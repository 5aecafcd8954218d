"""One run: the chosen tables one after another, each printed when it is done.

All numbers of a result file come from one run; two runs cannot be combined.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from shutil import rmtree

from tests.bench.effort import FORMS, Bench
from tests.bench.machine import describe_machine
from tests.bench.report import Table, targets_text
from tests.bench.results import Run
from tests.bench.tables import IN_ORDER
from tests.bench.touched_memory import TouchedMemory

Measure = Callable[[Bench], Iterable[Table]]

TABLES: dict[str, Measure] = {module.NAME: module.run for module in IN_ORDER}
"""The tables in the order in which they are measured."""

QUICK = (
    "limits",
    "ingest",
    "partitions",
    "durability",
    "ack",
    "visible",
    "query",
    "persist",
    "replay",
    "replication",
    "open",
    "sql",
)
"""The tables of a quick run without names: the main paths, in less than four minutes."""


def run_tables(
    names: list[str],
    form: str,
    folder: Path,
    *,
    show: Callable[[str], None],
    say: Callable[[str], None],
) -> Path:
    """Measure, show each table as text, and write all of it as JSON.

    Args:
        names: Keys of :data:`TABLES`.
        form: A key of :data:`FORMS`.
        folder: Gets the JSON file, the pictures and, during the run, the servers' data; its disk is
            the one measured.
        show: Gets the program's result.
        say: Gets the progress.

    Returns:
        The JSON file, ``bench-<time>.json``; the pictures are in a folder of the same name.
        After an error, both contain the tables that were done before it.
    """
    work = folder.resolve() / f"work-{os.getpid()}"
    work.mkdir(parents=True)
    machine = describe_machine(folder)
    began = time.monotonic()
    with ExitStack() as stack:
        stack.callback(rmtree, work, ignore_errors=True)
        say("memory: touched once")
        touched = stack.enter_context(TouchedMemory(FORMS[form].touched_bytes))
        machine["first_touch"] = f"{touched.first_touch_us:.2g}us/page"
        machine["touch"] = f"{touched.touch_us:.2g}us/page"
        show(" ".join(f"{key}={value}" for key, value in machine.items()) + "\n")
        run = Run(form, 0.0, {}, machine, [])
        path = run.write(folder)
        for name in names:
            # Unwritten data of one table must not slow the next one's syncs.
            os.sync()
            started = time.monotonic()
            bench = Bench(FORMS[form], work / name, folder, partial(_describe, name, say))
            for table in TABLES[name](bench):
                run.tables.append(table)
                show(table.text() + "\n")
            ended = time.monotonic()
            run.seconds, run.took[name] = round(ended - began, 1), round(ended - started, 1)
            run.write(folder)
    show(targets_text(run.tables))
    by_table = ", ".join(f"{name} {took_s:.0f}" for name, took_s in run.took.items())
    show(f"\n{form} form, {run.seconds} s: {by_table}")
    return path


def _describe(name: str, say: Callable[[str], None], text: str) -> None:
    say(f"{name}: {text}")
