"""The demo's course: check, start, stream and look, persist, stop, read with Spark, compare.

Whatever happens, the daemon is ended and a temporary folder removed; only when numbers disagree is
the folder kept, because it is the evidence.
"""

import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import msgspec
from rich.console import Console

from ingester.client import Client, ClientError

from .live_queries import WritesNotSeen
from .process import DaemonFailed, DemoDaemon
from .report import DemoResult, show, uncounted
from .requirements import missing_parts
from .source import SourceMissing, flights_file, read_flights
from .stages import compare_at_daemon, create_tables, measured, persist, stream, totals_by_spark
from .streaming import Load
from .totals import disagreements, totals_of

EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED = 0, 1, 130


class NumbersDisagree(Exception):
    """The demo has failed; its argument is the folder with the evidence."""


def run_demo(
    *,
    rows: int | None = None,
    data_dir: Path | None = None,
    writers: int = Load().writers,
    batch_rows: int = Load().batch_rows,
    json: bool = False,
) -> int:
    """Run the demo; its exit code: 0 when every number agrees, 1 when not, 130 after Ctrl-C.

    Args:
        rows: only the first so many flights; default all 336,776.
        data_dir: the daemon's folder, empty or not there, kept afterwards; default: a temporary
            one, removed.
        writers: concurrent writers per table.
        batch_rows: rows per batch; one batch is one operation.
        json: print one JSON object on standard output, and everything else on standard error.
    """
    problems = missing_parts()
    if data_dir is not None and data_dir.exists() and any(data_dir.iterdir()):
        problems.append(f"{data_dir} is not empty; name an empty or a new folder")
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
        return _failed(f"FAILED: numbers disagree; kept for a look: {exc}")
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
    """Let SIGTERM clean up as Ctrl-C does."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
