"""A rolling restart under load: three daemons are drained, stopped and restarted in turn.

Writers and readers wait briefly and see no error. Each written row exists once at every moment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from ingester.client import Client, RetryPolicy
from tests.cli.conftest import run_command
from tests.client.cluster.three import Three, three
from tests.drivers.waiting import until

PATIENT = RetryPolicy(for_s=60, first_delay_s=0.02, max_delay_s=0.3)
PLAIN = pa.schema({"n": pa.int64()})
KEYED = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64())])


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Three]:
    yield from three(tmp_path)


class Load:
    """Threads that work until they are stopped, each with a count of its finished calls."""

    def __init__(self) -> None:
        self.done: dict[str, int] = {}
        self.errors: list[BaseException] = []
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, name: str, work: Callable[[int], object]) -> None:
        """Start a thread that calls ``work`` with 0, 1, 2 and so on."""
        self.done[name] = 0

        def run() -> None:
            try:
                while not self._ended.is_set():
                    work(self.done[name])
                    self.done[name] += 1
            except BaseException as exc:
                self.errors.append(exc)

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()

    def until_all_went_on(self) -> None:
        """Wait until each thread has finished two more calls."""
        before = dict(self.done)
        until(
            lambda: bool(self.errors) or all(self.done[k] > n + 1 for k, n in before.items()),
            "work of every thread",
        )
        assert not self.errors

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(60)


def test_a_rolling_restart_is_seen_by_nobody(daemons: Three) -> None:
    load = Load()
    with (
        Client(daemons.endpoints, timeout_s=10, retry=PATIENT) as client,
        Client(daemons.endpoints[1], timeout_s=10, retry=PATIENT) as of_one,
    ):
        client.create_table("ns", "keyed", KEYED, primary_key=["id"])
        client.create_table("ns", "plain", PLAIN)
        with (
            client.writer("ns", "plain", PLAIN, origin="many") as many,
            of_one.writer("ns", "plain", PLAIN, origin="one") as one,
        ):
            seen = 0

            def read(_: int) -> None:
                nonlocal seen
                at_least = load.done["many"] + load.done["one"]
                found = client.query("ns", "plain")["n"].to_pylist()
                assert len(found) == len(set(found)), "rows stand twice"
                assert len(found) >= at_least, "acknowledged rows are missing"
                seen += 1

            load.start("many", lambda n: many.write({"n": [n]}).result(60))
            load.start("one", lambda n: one.write({"n": [1_000_000 + n]}).result(60))
            load.start("keyed", lambda n: client.write("ns", "keyed", {"id": [n % 7], "v": [n]}))
            load.start("read", read)
            try:
                for number in range(3):
                    load.until_all_went_on()
                    daemon = daemons.daemons[number]
                    drained = run_command(
                        "drain", "--wait", cwd=daemons.folder, endpoint=daemon.flight
                    )
                    assert drained.returncode == 0, drained.stderr.decode()
                    assert daemon.terminate() == 0
                    daemons.again(number)
                load.until_all_went_on()
            finally:
                load.end()
        assert not load.errors
        expected = [*range(load.done["many"]), *range(1_000_000, 1_000_000 + load.done["one"])]
        assert sorted(client.query("ns", "plain")["n"].to_pylist()) == expected
        keyed = client.query("ns", "keyed").to_pydict()
        last = {n % 7: n for n in range(load.done["keyed"])}
        assert dict(zip(keyed["id"], keyed["v"], strict=True)) == last
