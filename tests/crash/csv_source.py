"""A source of growing CSV files and its daemon are killed repeatedly; every line must arrive once.

    an appender ──▶ FOLDER/*.csv ──▶ deploy/examples/csv_folder.py ──▶ the daemon ──▶ its store

The files alone determine the expected rows. Appended pieces end anywhere, within a line and
within quotes. Source and daemon are killed at random, one or both; some kills of the daemon also
destroy its disk, so that only the store remains.
"""

from __future__ import annotations

import csv
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from random import Random

import pyarrow as pa

from ingester.client import Client, RetryPolicy
from tests.drivers.daemon import ROOT, Daemon
from tests.drivers.ports import free_port

TABLE = ("shop", "orders")
SCHEMA = pa.schema([("file", pa.string()), ("n", pa.int64()), ("note", pa.string())])
SOURCE = [sys.executable, str(ROOT / "deploy" / "examples" / "csv_folder.py")]
NOTES = ("plain", "", "a, b", 'said "so"', "two\nlines", "é\r\nü", "x" * 300)
KINDS = ("source", "daemon", "both", "source, daemon stands still")
ENDS_WITHIN_S = 120.0


class Appender:
    """Lets files grow until it is stopped; then each file ends with a complete line."""

    def __init__(self, folder: Path, files: int, rows_per_s: float, random: Random) -> None:
        self._paths = [folder / f"orders-{number}.csv" for number in range(files)]
        self._random = random
        self._pause_s = 10 * files / rows_per_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        """Return when all files are complete."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        numbers = dict.fromkeys(self._paths, 0)
        rest = dict.fromkeys(self._paths, b"file,n,note\n")
        while not self._stopped.wait(self._pause_s * self._random.uniform(0, 2) / len(numbers)):
            path = self._random.choice(self._paths)
            text = rest[path] + self._rows(path, numbers, self._random.randint(1, 20))
            cut = self._random.randint(0, len(text))
            rest[path] = text[cut:]
            _append(path, text[:cut])
        for path, text in rest.items():
            _append(path, text)

    def _rows(self, path: Path, numbers: dict[Path, int], count: int) -> bytes:
        lines = []
        for _ in range(count):
            numbers[path] += 1
            note = self._random.choice(NOTES).replace('"', '""')
            lines.append(f'{path.name},{numbers[path]},"{note}"\n')
        return "".join(lines).encode()


def _append(path: Path, piece: bytes) -> None:
    with path.open("ab") as file:
        file.write(piece)


class Kills:
    """The campaign: its kills, and the final faults."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self.rows = 0
        self.seconds = 0.0
        self._random = Random(seed)
        self._folder = folder
        self._files = folder / "in"
        self._files.mkdir(parents=True)
        self._endpoint = f"127.0.0.1:{free_port()}"
        self._source: subprocess.Popen[bytes] | None = None
        self._daemon = self._start()
        with Client(self._daemon.flight) as client:
            # Rows of one batch lie in several partitions, and a lost disk destroys some of them.
            client.create_table(*TABLE, SCHEMA, partition_by=["bucket(4, n)"])

    def run(self, kills: int, lost_disks: int = 1, rows_per_s: float = 2000.0) -> list[str]:
        """Kill this many times and return the faults; ``lost_disks`` kills destroy the disk."""
        began = time.monotonic()
        losing = set(self._random.sample(range(kills), lost_disks))
        appender = Appender(self._files, 4, rows_per_s, self._random)
        try:
            for number in range(kills):
                self._run_source()
                # Python and pyarrow take a moment to start: some kills precede the first row.
                time.sleep(self._random.uniform(0.2, 2.0))
                self._kill(lose_disk=number in losing)
            appender.stop()
            self._end()
            return self._wrong()
        finally:
            appender.stop()
            self._kill_source()
            self._daemon.kill()
            self.seconds = time.monotonic() - began

    def _kill(self, *, lose_disk: bool) -> None:
        who = "daemon and disk" if lose_disk else self._random.choice(KINDS)
        self.counts[who] += 1
        if who == "source, daemon stands still":
            self._daemon.process.send_signal(signal.SIGSTOP)
            # Requests in progress are served next to those of the next source.
            time.sleep(self._random.uniform(0, 0.3))
            self._kill_source()
            self._run_source()
            time.sleep(self._random.uniform(1.0, 2.5))
            self._daemon.process.send_signal(signal.SIGCONT)
            return
        if who in ("source", "both"):
            self._kill_source()
        if who == "source":
            return
        self._daemon.kill()
        if lose_disk:
            shutil.rmtree(self._daemon.data_dir)
        self._daemon = self._start()

    def _start(self) -> Daemon:
        return Daemon.start(
            self._folder / "data",
            arguments=["--flight", self._endpoint],
            store=f"file://{self._folder}/store",
            recovery__accept_lost_log="true",
            persist__max_age="700ms",
        )

    def _run_source(self) -> None:
        """Start the source unless it runs."""
        if self._source is not None and self._source.poll() is None:
            return
        if self._source is not None:
            self.counts["source ended by itself"] += 1
            self._kill_source()
        with (self._folder / "source.stderr").open("ab") as stderr:
            self._source = subprocess.Popen(
                [*SOURCE, *self._arguments(), "--poll", "0.05"], stderr=stderr
            )

    def _arguments(self) -> list[str]:
        return [str(self._files), *TABLE, "--endpoint", f"grpc://{self._endpoint}"]

    def _kill_source(self) -> None:
        if self._source is not None:
            self._source.kill()
            self._source.wait()
            self._source = None

    def _end(self) -> None:
        """Let a last source send the rest, next to one that may still run."""
        self._kill_source()
        done = subprocess.run(
            [*SOURCE, *self._arguments(), "--once"],
            capture_output=True,
            text=True,
            check=False,
            timeout=ENDS_WITHIN_S,
        )
        if done.returncode:
            raise AssertionError(f"the last source ended with {done.returncode}: {done.stderr}")

    def _wrong(self) -> list[str]:
        wrong = []
        retry = RetryPolicy(for_s=30)
        with Client(self._daemon.flight, retry=retry) as client:
            found: Counter[tuple[str, int, str | None]] = Counter(
                (row["file"], row["n"], row["note"]) for row in client.query(*TABLE).to_pylist()
            )
            for path in sorted(self._files.iterdir()):
                with path.open(newline="") as file:
                    lines = [*csv.reader(file)][1:]
                self.rows += len(lines)
                for name, number, note in lines:
                    times = found.pop((name, int(number), note or None), 0)
                    if times != 1:
                        wrong.append(f"{name}, row {number}: {times} times")
                state = client.checkpoint(*TABLE, path.name).state
                offset = None if state is None else json.loads(state)["offset"]
                if offset != path.stat().st_size:
                    wrong.append(f"{path.name}: state {offset}, and {path.stat().st_size} bytes")
        return wrong + [f"{row}: in no file" for row in found]
