"""One run: the chosen tables one after another, printed as they are done, then targets and JSON.

Law of this file: all numbers of one file are of one run; there is no way to put two runs together.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any

import pyarrow as pa

from tests.bench import ingest, limits, manifest, persist, query, replay, visible
from tests.bench.effort import FORMS, Bench
from tests.bench.report import Table, targets_text

Run = Callable[[Bench], list[Table]]

TABLES: dict[str, Run] = {
    module.NAME: module.run
    for module in (limits, ingest, visible, query, persist, replay, manifest)
}
"""In the order in which they are measured."""


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
        names: keys of :data:`TABLES`.
        form: a key of :data:`FORMS`.
        folder: gets the JSON file and, meanwhile, the servers' data: it is this disk that counts.
        show: gets what is the program's result.
        say: gets what it is doing.

    Returns:
        The JSON file, ``bench-<time>.json``.
    """
    work = folder / f"work-{os.getpid()}"
    work.mkdir(parents=True)
    machine = describe_machine(folder)
    show(" ".join(f"{key}={value}" for key, value in machine.items()) + "\n")
    began = time.monotonic()
    tables: list[Table] = []
    try:
        for name in names:
            bench = Bench(FORMS[form], work / name, partial(_say_of, name, say))
            for table in TABLES[name](bench):
                tables.append(table)
                show(table.text() + "\n")
    finally:
        rmtree(work, ignore_errors=True)
    show(targets_text(tables))
    took_s = round(time.monotonic() - began, 1)
    show(f"\n{form} form, {took_s} s")
    return _write(folder, {"form": form, "seconds": took_s, "machine": machine}, tables)


def _say_of(name: str, say: Callable[[str], None], text: str) -> None:
    say(f"{name}: {text}")


def describe_machine(folder: Path) -> dict[str, Any]:
    """What the numbers depend on and a reader cannot see in them."""
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cpus": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "disk": _file_system(folder),
        "python": platform.python_version(),
        "pyarrow": pa.__version__,
        "kernel": platform.release(),
    }


def _file_system(folder: Path) -> str:
    """The type of the file system that a folder is on: a sync of tmpfs says nothing."""
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mounted, found, *_ = line.split()
        if folder.resolve().is_relative_to(mounted) and len(mounted) >= len(best):
            best, kind = mounted, found
    return kind


def _write(folder: Path, facts: dict[str, Any], tables: list[Table]) -> Path:
    path = folder / f"bench-{facts['machine']['at'].replace(':', '')}.json"
    body = {**facts, "tables": [table.as_json() for table in tables]}
    path.write_text(json.dumps(body, indent=1) + "\n")
    return path
