"""A real daemon dies at a named step of its work, twice in a row; each row is present once.

The history of the clients gives the acknowledged rows, which must be present; the checker that
reads it knows nothing else. The rows of each story are read through the client, from the files
of the manifest with pyarrow alone, and at the end, all in one session, with Spark.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.crash.check import Checker
from tests.crash.faulty import FUNCTION_STEPS, STORE_STEPS
from tests.crash.history import History, events_of, now_s
from tests.crash.reading import Reader, StoreAt, call, read_spark
from tests.crash.rows import NAMESPACE, SCHEMA, TABLES, batch_of
from tests.drivers.daemon import Daemon, DaemonEnded, Launch

TABLE = TABLES[1]
ROWS = 30
ROUNDS = 40
"""The rounds of writes and flushes in which a daemon must reach its step."""
ENDED_WITHIN_S = 30.0
NEVER: dict[str, object] = {"persist__max_age": "1h"}
CLEANING: dict[str, object] = {"manifest__retain": "100ms", "manifest__orphan_grace": "0s"}
TIGHT: dict[str, object] = {"persist__max_partition_bytes": "1KiB", "wal__segment_bytes": "4KiB"}


class Faulty(Launch):
    """A daemon that dies at a step."""

    command = (sys.executable, "-m", "tests.crash.faulty", "serve")


class Story:
    """One data directory with its local store, one writer, one reader, and their history."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.history = History(folder / "history")
        self.reader = Reader(self.history, "reader")
        self.store = StoreAt(f"file://{folder / 'data' / 'store'}", {})
        self._next = 0

    def launch(self, settings: dict[str, object], step: str | None = None) -> Launch:
        """How a daemon is started here; with a step, it dies at the step."""
        if step is None:
            return Launch(self.folder / "data", {}, (), settings)
        return Faulty(self.folder / "data", {"CRASH_AT": step}, (), settings)

    def write(self, endpoint: str, batches: int = 3) -> None:
        """Write batches one after the other until one fails."""
        with fl.connect(endpoint) as client:
            path = fl.FlightDescriptor.for_path(NAMESPACE, TABLE.name)
            stream, answers = client.do_put(path, SCHEMA)
            for _ in range(batches):
                start = self._next
                self._next += ROWS
                self._note("sent", start, count=ROWS)
                stream.write_batch(batch_of(1, start, ROWS))
                if not answers.read():
                    break
                self._note("kept", start)
            stream.close()

    def live_until_it_dies(self, settings: dict[str, object], step: str) -> None:
        """Start a daemon, write and flush until it has died at the step."""
        code: int | None
        try:
            with self.launch(settings, step).start() as daemon:
                with suppress(fl.FlightError, pa.ArrowException, OSError):
                    self.work(daemon)
                code = daemon.process.wait(ENDED_WITHIN_S)
        except DaemonEnded as exc:
            code = exc.code
        assert code == -signal.SIGKILL

    def work(self, daemon: Daemon) -> None:
        """Write and flush for some time; raises when the daemon dies."""
        call(daemon.flight, "create_table", **TABLE.create_body())
        for _ in range(ROUNDS):
            self.write(daemon.flight)
            call(daemon.flight, "persist", timeout_s=20)

    def end_well(self) -> None:
        """Check that a daemon without faults has every row, and after its stop the files do."""
        with self.launch(NEVER).start() as daemon:
            before = self.reader.read(daemon.flight, TABLE.name)
            self.write(daemon.flight)
            after = self.reader.read(daemon.flight, TABLE.name)
            assert after.num_rows == before.num_rows + 3 * ROWS
            call(daemon.flight, "persist", timeout_s=60)
            assert self.reader.read(daemon.flight, TABLE.name).num_rows == after.num_rows
            assert self.reader.read_files(self.store, TABLE.name).num_rows == after.num_rows
            assert daemon.terminate() == 0
        self.reader.read_files(self.store, TABLE.name)
        self.judge()

    def judge(self) -> None:
        """Return the checker's anomalies of the history so far."""
        verdict = Checker().check(events_of(self.history.path))
        assert verdict.anomalies == []
        assert verdict.kept > 3

    def _note(self, kind: str, start: int, **facts: Any) -> None:
        what = {"by": "writer", "table": TABLE.name, "writer": 1, "start": start}
        self.history.add({"is": kind, "t": now_s(), **what, **facts})


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Story]]:
    """All stories so far, for Spark."""
    told: dict[str, Story] = {}
    yield told
    for story in told.values():
        story.history.close()
        rmtree(story.folder)


@pytest.fixture
def story(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    stories: dict[str, Story],
) -> Iterator[Story]:
    """A story that ends well. Its folder outlives it, for Spark."""
    new = Story(tmp_path_factory.mktemp("crash") / "story")
    yield new
    new.end_well()
    stories[request.node.name] = new


def twice(story: Story, settings: dict[str, object], first: str, second: str) -> None:
    """Let two daemons in a row die at these steps."""
    story.live_until_it_dies(settings, first)
    story.live_until_it_dies(settings, second)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["file-put:2", "changelog-put", "committing:2"])
def test_persisted_then_crashed_before_the_commit_twice(story: Story, step: str) -> None:
    twice(story, NEVER, step, step)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["committed", "releasing:3"])
def test_committed_then_crashed_before_the_release_twice(story: Story, step: str) -> None:
    twice(story, NEVER, step, step)


@pytest.mark.slow
@pytest.mark.parametrize(
    "step", ["released:3", "segment-going", "segment-put-aside", "segment-gone"]
)
def test_released_then_crashed_before_the_segment_is_gone_twice(story: Story, step: str) -> None:
    twice(story, NEVER | TIGHT, step, step)


def leave_a_log(story: Story) -> None:
    """Kill a daemon with some rows in files and some only in the log."""
    with story.launch(NEVER).start() as daemon:
        call(daemon.flight, "create_table", **TABLE.create_body())
        story.write(daemon.flight)
        call(daemon.flight, "persist", timeout_s=20)
        story.write(daemon.flight, batches=20)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["registered", "replayed-some:7", "replayed-all"])
def test_crashed_in_replay_twice(story: Story, step: str) -> None:
    leave_a_log(story)
    twice(story, NEVER, step, step)


@pytest.mark.slow
def test_crashed_while_replay_persists_twice(story: Story) -> None:
    leave_a_log(story)
    twice(story, NEVER | TIGHT, "committed", "file-put:2")


@pytest.mark.slow
@pytest.mark.parametrize("step", ["deleting-a-commit:2", "commit-deleted:2", "changelog-deleted"])
def test_crashed_in_clean_up_twice(story: Story, step: str) -> None:
    twice(story, NEVER | CLEANING, step, step)


def test_every_step_is_of_a_call_that_there_is() -> None:
    known = set(STORE_STEPS) | set(FUNCTION_STEPS)
    code = "from tests.crash.faulty import die_at\nfor step in {}: die_at(step, 1)"
    done = subprocess.run(
        [sys.executable, "-c", code.format(sorted(known))], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.spark
def test_spark_has_each_row_of_every_crash_once(stories: dict[str, Story]) -> None:
    if not stories:
        pytest.skip("no crash was tried")
    told = list(stories.values())
    sent = now_s()
    found = read_spark([story.store for story in told], [TABLE.name])
    for story, tables in zip(told, found, strict=True):
        story.reader.saw(TABLE.name, tables[TABLE.name], sent, None, how="spark")
        story.judge()
        assert json.loads(story.history.path.read_text().splitlines()[-1])["how"] == "spark"
