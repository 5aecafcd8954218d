"""A daemon's reports of its store, disk and event loop while they fail."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest
import trio
import trio.testing
from prometheus_client.parser import text_string_to_metric_families

from ingester.daemon.loop_watch import REMEMBERED_S, TURN_S, LoopWatch
from ingester.daemon.store_probe import WRITES_EVERY_S, StoreProbe
from persist.manifest import claim_epoch
from persist.manifest.paths import claim_path
from persist.store import PutInfo, StoreDenied, StoreWatch
from persist.store.watched import SLOW_S, StoreStatus
from tests.crash.worlds import mount, no_small_disk
from tests.drivers.daemon import Daemon
from tests.drivers.memory_store import MemoryStore
from tests.drivers.s3_server import S3Server
from tests.drivers.waiting import until
from tests.drivers.wire import Table, http, numbers, persist, put, query

if TYPE_CHECKING:
    from typing_extensions import Buffer

TABLE: Table = ("watched", "t")
BATCH = numbers(0, 8, s=pa.array(["x" * 100_000] * 8))
"""0.8 MB; a segment holds several batches."""


def health(daemon: Daemon, purpose: str = "any") -> int:
    return http(f"{daemon.http}/health/ready?for={purpose}")[0]


def told(daemon: Daemon, path: str = "/api/status") -> Any:
    return json.loads(http(f"{daemon.http}{path}")[2])


def alarms(daemon: Daemon) -> dict[str, str]:
    """The raised alarms, with their severities."""
    return {each["name"]: each["severity"] for each in told(daemon)["alarms"]}


def metrics(daemon: Daemon) -> dict[tuple[str, ...], float]:
    text = http(f"{daemon.http}/metrics")[2].decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    """An S3 server whose requests can be made to fail."""
    with S3Server.start() as server:
        server.make_bucket("lake")
        yield server


def test_a_store_that_is_away_is_said_everywhere_and_so_is_one_that_takes_no_writes(
    tmp_path: Path, server: S3Server
) -> None:
    where = {"environment": server.environment, "store": "s3://lake/watch"}
    with Daemon.start(tmp_path / "d", **where) as daemon, fl.connect(daemon.flight) as client:  # type: ignore[arg-type]
        put(client, TABLE, BATCH)
        persist(client, TABLE)
        put(client, TABLE, BATCH)
        assert (alarms(daemon), told(daemon)["store_state"]["state"]) == ({}, "ok")
        assert 0 < told(daemon)["oldest_unpersisted_s"] < 60

        server.fault("denied", method="PUT", times=1_000_000)
        with suppress(fl.FlightError):
            persist(client, TABLE, timeout_s=0.5)
        until(lambda: alarms(daemon).get("store-away") == "critical", "the alarm", 10)
        state = told(daemon)["store_state"]
        assert (state["state"], state["reads"], state["writes"]) == ("away", True, False)
        assert "AccessDenied" in state["last_error"]
        assert [health(daemon, each) for each in ("any", "query", "write")] == [200, 200, 200]

        server.fault("unavailable", times=1_000_000)
        until(lambda: health(daemon, "query") == 503, "a query that would fail", 10)
        assert [health(daemon), health(daemon, "write")] == [200, 200]
        # As reported: an open table still takes writes, any other is refused with `store`.
        assert "not opened since the start" in told(daemon, "/health/ready?for=write")["limited"][0]
        put(client, TABLE, numbers(0, 1, s=pa.array(["x"])))
        with pytest.raises(fl.FlightError, match="the object store cannot be reached"):
            put(client, ("watched", "new"), BATCH)
        asked = [sys.executable, "-m", "ingester", "status", "--endpoint", daemon.flight]
        text = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        for said in (
            "tables not opened since the start",
            "unreachable since",
            "s old",
            " free of ",
        ):
            assert said in text, text
        until(lambda: "persist-failing" in alarms(daemon), "three attempts", 15)
        assert set(told(daemon, "/health/ready")["alarms"]) == {"store-away", "persist-failing"}
        seen = metrics(daemon)
        assert seen["ingester_store_up",] == 0
        assert seen["ingester_alarm", "store-away"] == 1
        assert seen["ingester_alarm", "disk-full"] == 0
        assert seen["ingester_store_requests_total", "put", "denied"] > 0
        assert seen["ingester_store_request_seconds_count", "put"] > 0
        assert seen["ingester_oldest_unpersisted_seconds",] > 0
        assert seen["ingester_http_requests_total", "/health/ready", "503"] > 0
        assert seen["ingester_log_segments_created_total",] == 1

        server.clear_faults()
        until(lambda: health(daemon, "query") == 200, "the store's return", 10)
        # Without writers, the probe's own write detects the recovery.
        until(lambda: told(daemon)["store_state"]["state"] == "ok", "a write", 10)
        assert metrics(daemon)["ingester_store_up",] == 1
        assert "alarm raised" in {each["event"] for each in told(daemon)["errors"]}


def test_a_probe_tells_another_store_by_the_claim_that_it_lacks() -> None:
    memory = MemoryStore()
    claim_epoch(memory, "tested", 1, {})
    claim = claim_path("tested", 1)

    async def main() -> list[StoreStatus]:
        probe = StoreProbe()
        probe.watched(memory)
        probe.expect("tested", 1)
        found = []
        for change in (
            lambda: None,
            lambda: memory.delete(claim),
            lambda: memory.put(claim, b""),
        ):
            change()
            await probe.probe()
            found.append(probe.watch.status())
        return found

    well, emptied, again = trio.run(main)
    assert [well.state, emptied.state, again.state] == ["ok", "away", "ok"]
    assert (emptied.reads, emptied.writes, again.reads) == (False, False, True)
    assert claim in str(emptied.last_error)


def test_a_probe_tells_a_process_that_has_started_under_the_same_id() -> None:
    memory = MemoryStore()

    async def main() -> list[bool]:
        probe = StoreProbe()
        probe.watched(memory)
        probe.expect("tested", claim_epoch(memory, "tested", 1, {}))
        found = []
        for other in ("another", "tested"):
            claim_epoch(memory, other, 1, {})
            await probe.probe()
            found.append(probe.superseded)
        return found

    assert trio.run(main) == [False, True]


def test_a_store_that_swallows_requests_is_away_after_the_probes_own_time() -> None:
    let_go = threading.Event()

    class Hanging(MemoryStore):
        def get(self, path: str) -> bytes:
            let_go.wait(30)
            return b""

    async def main() -> StoreStatus:
        probe = StoreProbe(timeout_s=0.05)
        probe.watched(Hanging())
        try:
            for _ in range(3):  # more than there are threads
                await probe.probe()
            return probe.watch.status()
        finally:
            let_go.set()

    standing = trio.run(main)
    assert (standing.state, standing.last_error) == ("away", "no answer within 0.05 s")


def test_writes_that_hang_are_found_out_beside_reads_that_work() -> None:
    let_go = threading.Event()

    class Frozen(MemoryStore):
        def put(self, path: str, data: Buffer) -> PutInfo:
            let_go.wait(30)
            return super().put(path, data)

    async def main() -> list[StoreStatus]:
        late_s, found = [0.0], []
        probe = StoreProbe(timeout_s=0.05)
        probe.watch = StoreWatch(clock=lambda: time.monotonic() + late_s[0])
        store = probe.watched(Frozen())
        claim_epoch(store, "tested", 1, {})
        probe.expect("tested", 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, store.put, "file", b"")
            await trio.testing.wait_all_tasks_blocked()
            for late_s[0] in (0.0, SLOW_S + 1):
                for _ in range(3):  # more than there are threads
                    await probe.probe()
                found.append(probe.watch.status())
            let_go.set()
        return [*found, probe.watch.status()]

    early, hanging, well = trio.run(main)
    assert (early.state, well.state) == ("ok", "ok")
    assert (hanging.state, hanging.reads, hanging.writes) == ("away", True, False)


def test_a_store_that_takes_no_writes_any_more_is_found_out_while_nobody_writes() -> None:
    now_s = [0.0]

    class Lake(MemoryStore):
        refuses, puts = False, 0

        def put(self, path: str, data: Buffer) -> PutInfo:
            self.puts += 1
            if self.refuses:
                raise StoreDenied("read-only file system")
            return super().put(path, data)

    async def main() -> None:
        lake = Lake()
        probe = StoreProbe()
        probe.watch = StoreWatch(clock=lambda: now_s[0])
        store = probe.watched(lake)
        probe.expect("tested", claim_epoch(store, "tested", 1, {}))
        for wrote, puts in ((True, 1), (False, 1), (False, 2), (False, 2), (False, 3)):
            now_s[0] += WRITES_EVERY_S / 2 + 1
            if wrote:
                store.put("file", b"")
            await probe.probe()
            assert (lake.puts, probe.watch.status().state) == (puts, "ok")
        lake.refuses = True
        now_s[0] += WRITES_EVERY_S + 1
        for _ in range(2):  # a single failure is not an outage
            await probe.probe()
        standing = probe.watch.status()
        assert (standing.state, standing.reads, standing.writes) == ("away", True, False)
        assert standing.last_error is not None and "read-only" in standing.last_error
        lake.refuses = False
        await probe.probe()
        assert probe.watch.status().state == "ok"

    trio.run(main)


def test_a_full_disk_is_not_ready_for_writes_of_the_size_that_batches_have(tmp_path: Path) -> None:
    if (why := no_small_disk(tmp_path)) is not None:
        pytest.skip(why)
    disk = tmp_path / "disk"
    disk.mkdir()
    assert mount(disk)
    try:
        store = f"file://{tmp_path}/store"
        settings = {"store": store, "wal__segment_bytes": "4MiB"}
        with Daemon.start(disk / "d", **settings) as daemon:  # type: ignore[arg-type]
            _fill_and_clear(daemon, disk / "ballast")
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def _fill_and_clear(daemon: Daemon, ballast: Path) -> None:
    with fl.connect(daemon.flight) as client:
        put(client, TABLE, BATCH)
        assert (health(daemon, "write"), alarms(daemon)) == (200, {})
        _fill(ballast)
        until(lambda: "disk-full" in alarms(daemon), "a look at the disk", 10)
        refused = None
        while refused is None:
            try:
                put(client, TABLE, BATCH)
            except fl.FlightUnavailableError as exc:
                refused = exc
        assert b"disk_full" in refused.extra_info
        # A small batch may still be accepted; later ones are refused.
        assert (health(daemon, "write"), health(daemon, "query")) == (503, 200)
        assert alarms(daemon)["disk-full"] == "critical"
        assert told(daemon)["disk"]["full"]
        assert query(client, TABLE).num_rows >= 8
        ballast.unlink()
        until(lambda: health(daemon, "write") == 200, "room on the disk", 10)
        put(client, TABLE, BATCH)
        assert told(daemon)["admission"]["accepts_writes"]


def _fill(ballast: Path) -> None:
    with ballast.open("wb") as file, suppress(OSError):
        while True:
            file.write(b"x" * (1 << 20))
            file.flush()


def test_the_loop_is_late_for_a_minute_after_it_stood_still() -> None:
    clock = trio.testing.MockClock()

    async def main() -> list[float]:
        watch, found = LoopWatch(), []
        for passed_s in (TURN_S, TURN_S + 8.0, TURN_S, REMEMBERED_S):
            clock.jump(passed_s)
            watch.turned()
            found.append(round(watch.late_s, 3))
        return found

    assert trio.run(main, clock=clock) == [0.0, 8.0, 8.0, REMEMBERED_S - TURN_S]


STUCK = """
import time, trio
from ingester.daemon.loop_watch import LoopWatch

async def main():
    LoopWatch(dump_s=0.2).turned()
    stand_still()

def stand_still():
    {call}

trio.run(main)
"""


@pytest.mark.parametrize(
    "call", ["time.sleep(0.6)", "sum(range(100_000_000))"], ids=["waits", "keeps the interpreter"]
)
def test_a_loop_that_stands_still_has_its_stacks_written(call: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    command = [sys.executable, "-c", STUCK.format(call=call)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(r"Timeout \(0:00:00\.[24]", done.stderr)
    assert "in stand_still" in done.stderr


def test_a_row_is_as_old_after_a_restart_as_its_segment_of_the_log(tmp_path: Path) -> None:
    with Daemon.start(tmp_path / "d") as daemon:
        with fl.connect(daemon.flight) as client:
            put(client, TABLE, BATCH)
        daemon.kill()
    # Make the segment look one hour old.
    (segment,) = (daemon.data_dir / "wal").glob("*.wal")
    at = segment.stat().st_mtime - 3600
    os.utime(segment, (at, at))
    with daemon.again() as again:
        assert 3600 <= told(again)["oldest_unpersisted_s"] < 3700
        assert told(again)["tables"][0]["oldest_buffered_s"] >= 3600
        assert alarms(again) == {"oldest-row": "warning"}
        with fl.connect(again.flight) as client:
            persist(client, TABLE)
        assert told(again)["oldest_unpersisted_s"] is None
