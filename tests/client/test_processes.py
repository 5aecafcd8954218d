"""After a fork and at a process's exit nothing hangs, and lost batches are reported."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.client.rows import values
from tests.client.small_daemon import SmallDaemon

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60
    )


def test_a_forked_child_gets_an_error_and_does_not_touch_its_parents_streams(
    daemon: SmallDaemon,
) -> None:
    go_on = threading.Event()

    def hold(n: int) -> None:
        # The first batch is written before any client; the second is acknowledged before the fork.
        assert n != 3 or go_on.wait(50)

    daemon.after = hold
    command = [sys.executable, "-m", "tests.client.forked_program", daemon.endpoint]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        said = program.stdout.readline()
        go_on.set()
        _, stderr = program.communicate(timeout=60)
    assert (said, program.returncode) == ("go on\n", 0), stderr
    assert len(values(daemon)) == 5


PROGRAM = """
import sys
import pyarrow as pa
from ingester.client import Client

client = Client(sys.argv[1])
writer = client.writer("ns", "t", pa.schema([("v", pa.int64())]))
batch = pa.record_batch({"v": [1]})
for _ in range(100):
    writer.write(batch)
stream = client.query_stream("ns", "t") if writer.acknowledged.rows else None
"""
READING_ELSEWHERE = """
import contextlib, threading
from ingester.client import ClientError
writer.flush()
stream = client.query_stream("ns", "t")
def make(call):
    with contextlib.suppress(ClientError):
        call()
for call in (lambda: list(stream), lambda: client.query("ns", "t"), client.tables):
    threading.Thread(target=make, args=(call,), daemon=True).start()
"""


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("sys.exit(3)", 3, ""),
        ("raise LookupError('mine')", 1, "LookupError: mine"),
        ("with writer: raise LookupError('mine')", 1, "LookupError: mine"),
        ("import threading; threading.Thread(target=writer.flush, daemon=True).start()", 0, ""),
        (READING_ELSEWHERE, 0, ""),
    ],
)
def test_a_program_exits_cleanly_with_an_open_writer(
    daemon: SmallDaemon, end: str, code: int, said: str
) -> None:
    done = run("-c", PROGRAM + end, daemon.endpoint)
    assert done.returncode == code, done.stderr
    assert done.stderr.strip().splitlines()[-1:] == ([said] if said else [])
    if "with" not in end:
        assert len(values(daemon)) == 100  # written batches are still acknowledged


def test_unanswered_batches_are_reported_at_exit(daemon: SmallDaemon) -> None:
    ended = threading.Event()

    def hold(n: int) -> None:
        assert n < 5 or ended.wait(60)

    daemon.before = hold
    end = "import ingester.client.lifetime as l; l.EXIT_WITHIN_S = 0.5; sys.exit(3)"
    done = run("-c", PROGRAM + end, daemon.endpoint)
    ended.set()
    assert done.returncode == 3, done.stderr
    assert "batches had no answer when the process ended" in done.stderr
