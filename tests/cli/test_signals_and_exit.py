"""The process ends cleanly with its exit code, even if a thread of pyarrow is blocked."""

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from ingester.cli.exits import remove_half_written
from ingester.cli.output.formats import appearing
from ingester.client import Client
from tests.cli.conftest import ROOT
from tests.drivers.daemon import Daemon

WITHIN_S = 60.0
ONE_BATCH = pa.record_batch({"v": pa.array(range(1000), pa.int64())})


class Mute(flight.FlightServerBase):  # type: ignore[misc]
    """Begins an answer, then sends nothing until the test lets it."""

    def __init__(self) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self.endpoint = f"grpc://127.0.0.1:{self.port}"
        self.asked = threading.Event()
        self.let = threading.Event()

    def do_get(self, context: Any, ticket: Any) -> Any:
        def answer() -> Iterator[pa.RecordBatch]:
            yield ONE_BATCH
            self.asked.set()
            self.let.wait(WITHIN_S)

        return flight.GeneratorStream(ONE_BATCH.schema, answer())


@pytest.fixture
def mute() -> Iterator[Mute]:
    server = Mute()
    yield server
    server.let.set()
    server.shutdown()


Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a command with its own interpreter, whose end is the subject of these tests."""
    started: list[subprocess.Popen[bytes]] = []

    def command(*arguments: object, stdout: Any = subprocess.PIPE) -> "subprocess.Popen[bytes]":
        process: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, "-m", "ingester", *map(str, arguments)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        return process

    yield command
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_waiting_query_and_leaves_no_partial_file(
    mute: Mute, start: Start, tmp_path: Path, number: int, code: int
) -> None:
    running = start("query", "n", "t", "--output", "rows.parquet", "--endpoint", mute.endpoint)
    assert mute.asked.wait(WITHIN_S)
    part = wait_for(lambda: list(tmp_path.iterdir()))
    assert part[0].name.startswith(".rows.parquet.")
    running.send_signal(number)
    assert running.wait(WITHIN_S) == code
    assert output(running) == b""
    assert list(tmp_path.iterdir()) == []


# Between a file's creation and its `with`, the interpreter closes the file and Python warns.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_at_any_line_leaves_a_complete_file_or_none(tmp_path: Path) -> None:
    path, written, line = tmp_path / "rows.csv", b"1\n" * 100, 0
    interrupted = True
    while interrupted:
        line += 1
        interrupted = interrupted_at(line, lambda: write_to(path, written))
        remove_half_written()  # as at the end of the process
        assert [each.read_bytes() for each in tmp_path.iterdir()] in ([], [written])
        path.unlink(missing_ok=True)
    assert line > 20


def test_a_second_signal_ends_the_process_at_once(mute: Mute, start: Start) -> None:
    running = start("query", "n", "t", "--format", "csv", "--endpoint", mute.endpoint)
    assert mute.asked.wait(WITHIN_S)
    began = time.monotonic()
    while running.poll() is None:
        assert time.monotonic() < began + WITHIN_S
        running.send_signal(signal.SIGINT)
    assert running.returncode == 130


def test_a_signal_ends_a_write_waiting_for_a_pipe(served: Daemon, start: Start) -> None:
    running = start(
        "write", "ending", "pipe", "-", "--input-format", "csv", "--endpoint", served.flight
    )
    assert running.stdin is not None
    # More than the command reads from a pipe before it sends: it is still reading.
    running.stdin.write(b"v\n" + b"1000000\n" * 700_000)
    running.stdin.flush()
    running.send_signal(signal.SIGINT)
    assert running.wait(WITHIN_S) == 130


def test_an_invalid_row_in_a_pipe_is_reported_while_a_thread_waits_for_more(
    served: Daemon, start: Start
) -> None:
    running = start(
        "write", "ending", "bad", "-", "--input-format", "csv", "--endpoint", served.flight
    )
    assert running.stdin is not None
    with suppress(BrokenPipeError):  # it ends at the row, not after reading everything
        running.stdin.write(
            b"v,w\n" + b"1000000,1\n" * 700_000 + b"1,2,3\n" + b"1000000,1\n" * 700_000
        )
        running.stdin.flush()
    assert running.wait(WITHIN_S) == 1
    assert b"Expected 2 columns, got 3" in output(running)


def test_a_closed_output_pipe_ends_the_process_quietly(served: Daemon, start: Start) -> None:
    with Client(served.flight) as client:
        client.write("ending", "t", pa.table({"v": range(200_000)}))
    head, tail = os.pipe()
    running = start(
        "query", "ending", "t", "--format", "csv", "--endpoint", served.flight, stdout=tail
    )
    os.close(tail)
    with os.fdopen(head, "rb", buffering=0) as reader:
        assert reader.read(3) == b'"v"'
    assert (running.wait(WITHIN_S), output(running)) == (1, b"")


@pytest.mark.parametrize("arguments", [["--version"], ["tables"], ["query", "ending", "full"]])
def test_output_that_cannot_be_written_is_reported(
    served: Daemon, start: Start, arguments: list[str]
) -> None:
    with Client(served.flight) as client:
        client.write("ending", "full", ONE_BATCH)
    more = [] if arguments == ["--version"] else ["--endpoint", served.flight]
    with Path("/dev/full").open("wb") as full:
        running = start(*arguments, *more, stdout=full)
        assert running.wait(WITHIN_S) == 1
    assert b"No space left" in output(running)
    assert b"Traceback" not in output(running)


def write_to(path: Path, data: bytes) -> None:
    with appearing(path) as file:
        file.write(data)


def interrupted_at(number: int, call: Callable[[], None]) -> bool:
    """Interrupt ``call`` at its n-th line; return whether it has that many."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        if event == "line" and lines == number:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def wait_for(look: Callable[[], list[Path]]) -> list[Path]:
    give_up_at = time.monotonic() + WITHIN_S
    while not (found := look()):
        assert time.monotonic() < give_up_at
        time.sleep(0.01)
    return found


def output(process: "subprocess.Popen[bytes]") -> bytes:
    assert process.stderr is not None
    return process.stderr.read()


def test_an_answer_is_hidden_until_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "answer.csv"
    with appearing(path) as file:
        (part,) = tmp_path.iterdir()
        file.write(b"a")
        assert stat.S_IMODE(part.stat().st_mode) == 0o600
    plain = tmp_path / "plain"
    plain.touch()
    assert path.stat().st_mode == plain.stat().st_mode


SIGNALLED_AT_IMPORT = """
import os, signal, sys
from ingester.cli import main

class Signal:
    def find_spec(self, name, *_):
        if name == "ingester.postgres.replicator":
            os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, Signal())
sys.argv[1:] = ["replicate", "postgres", "host=127.0.0.1 port=1", "n", "--json"]
sys.argv += ["--endpoint", "grpc://127.0.0.1:1"]
main()
"""


def test_a_replicator_that_is_stopped_while_it_starts_ends_in_order() -> None:
    """Its imports take long enough for a service manager to stop it meanwhile."""
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED_AT_IMPORT],
        cwd=ROOT,
        capture_output=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b'"changes":0' in done.stdout.replace(b" ", b"")
