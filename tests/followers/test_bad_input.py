"""Invalid input of followers is refused with the cause and a remedy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ingester.client import Client
from ingester.client.errors import ClientError, InvalidRequest, NotFound, Unreachable
from ingester.followers import (
    FollowedTable,
    Follower,
    FollowerError,
    FollowerSink,
    FollowOptions,
    SinkFailed,
    StateDamaged,
    StateOfAnother,
    TableReplaced,
)
from ingester.followers.state import decode_state
from tests.drivers.daemon import ROOT, Daemon
from tests.drivers.ports import steady_flight
from tests.drivers.wire import Table
from tests.followers.memory_sink import Disk, MemorySink, PlainSink, content

OPTIONS = FollowOptions(wait_s=20.0, connect_s=1.0)


def failure(
    daemon: Daemon, disk: Disk, table: Table, store: str | None = None, **asked: Any
) -> ClientError:
    """Return the error that ends the follower."""
    follower = Follower(daemon.flight, lambda of: MemorySink(of, disk), store, options=OPTIONS)
    follower.follow(*table, **asked)
    with follower, pytest.raises(ClientError) as caught:
        follower.wait_current(20)
    return caught.value


@pytest.fixture
def filled(shared: Daemon, table: Table) -> Table:
    with Client(shared.flight) as client:
        client.write(*table, {"id": [1, 2], "v": ["a", "b"]})
    return table


def test_a_table_that_there_is_not(shared: Daemon) -> None:
    error = failure(shared, Disk(), ("it", "nowhere"))
    assert isinstance(error, NotFound) and "it/nowhere" in str(error)


def test_columns_that_there_are_not(shared: Daemon, filled: Table) -> None:
    error = failure(shared, Disk(), filled, columns=["id", "w"])
    assert isinstance(error, InvalidRequest) and "'w'" in str(error)


def test_bytes_beside_a_column_of_text(shared: Daemon, filled: Table) -> None:
    error = failure(shared, Disk(), filled, filter=[("v", "=", b"a")])
    assert isinstance(error, InvalidRequest) and "'v' of type string" in str(error)


def test_a_filter_of_text_that_is_none(shared: Daemon, filled: Table) -> None:
    error = failure(shared, Disk(), filled, filter="v =")
    assert isinstance(error, InvalidRequest) and "at 3: expected a value" in str(error)


def test_columns_without_the_key(shared: Daemon, table: Table) -> None:
    import pyarrow as pa

    with Client(shared.flight) as client:
        schema = pa.schema([("id", pa.int64()), ("v", pa.string())])
        client.create_table(*table, schema, primary_key=["id"])
    error = failure(shared, Disk(), table, columns=["v"])
    assert isinstance(error, InvalidRequest) and "id" in str(error)


def test_a_filter_on_a_column_that_there_is_not(shared: Daemon, filled: Table) -> None:
    error = failure(shared, Disk(), filled, filter=[("w", "=", 1)])
    assert isinstance(error, InvalidRequest) and "w" in str(error)


def test_another_store_than_the_daemons(shared: Daemon, filled: Table, tmp_path: Path) -> None:
    error = failure(shared, Disk(), filled, store=f"file://{tmp_path}/empty")
    assert isinstance(error, InvalidRequest) and "name the daemon's store" in str(error)


@pytest.mark.parametrize("store", ["nothing://x", "s3://", "s3://key@bucket/x", 7])
def test_a_store_that_is_none(shared: Daemon, filled: Table, store: Any) -> None:
    def start() -> None:
        make = MemorySink
        follower = Follower(shared.flight, lambda of: make(of, Disk()), store, options=OPTIONS)
        follower.follow(*filled)
        follower.start()

    with pytest.raises(InvalidRequest, match="store"):
        start()


@pytest.mark.parametrize(
    "state", [b"", b"INGFOLW\x09aaaa", b"INGFOLW\x01\0\0\0\0zzz", b"x" * 40, b"INGFOLW\x01"]
)
def test_bytes_that_are_no_state(shared: Daemon, filled: Table, state: bytes) -> None:
    error = failure(shared, Disk(), filled, seek=state)
    assert isinstance(error, StateDamaged)


def test_a_state_that_was_changed_on_its_way(shared: Daemon, filled: Table) -> None:
    state = _state_of(shared, filled)
    for place in range(len(state)):
        with pytest.raises(StateDamaged):
            decode_state(state[:place] + bytes([state[place] ^ 1]) + state[place + 1 :])


def test_a_state_of_another_table(shared: Daemon, filled: Table) -> None:
    with Client(shared.flight) as client:
        client.write(filled[0], "other", {"id": [1]})
    error = failure(shared, Disk(), (filled[0], "other"), seek=_state_of(shared, filled))
    assert isinstance(error, StateOfAnother) and filled[1] in str(error) and "other" in str(error)


def test_a_copy_of_another_daemon(shared: Daemon, filled: Table, tmp_path: Path) -> None:
    disk = Disk()
    _follow(shared, disk, filled)
    store = f"file://{shared.data_dir}/store"
    with Daemon.start(tmp_path / "d", id="somebody", store=store) as other:
        error = failure(other, disk, filled)
    assert isinstance(error, StateOfAnother)
    assert "somebody" in str(error) and shared.ready["ingester_id"] in str(error)


def test_a_table_that_is_dropped_under_the_follower(tmp_path: Path) -> None:
    import shutil

    disk = Disk()
    arguments = steady_flight()
    with (
        Daemon.start(tmp_path / "d", arguments=arguments) as daemon,
        Client(daemon.flight) as client,
    ):
        client.write("n", "t", {"id": [1]})
        client.persist()
        _follow(daemon, disk, ("n", "t"))
        daemon.terminate()
        shutil.rmtree(tmp_path / "d" / "store" / "n")
        with daemon.again() as again:
            error = failure(again, disk, ("n", "t"))
    assert isinstance(error, NotFound | TableReplaced)
    assert content(disk, keyed=False).total() == 1, "the copy keeps its last rows"


def test_a_file_of_the_newest_version_that_is_gone(tmp_path: Path) -> None:
    with Daemon.start(tmp_path / "d") as daemon, Client(daemon.flight) as client:
        client.write("n", "t", {"id": [1]})
        client.persist()
        (file,) = (tmp_path / "d" / "store" / "n" / "t").rglob("*.parquet")
        file.unlink()
        error = failure(daemon, Disk(), ("n", "t"))
    assert isinstance(error, FollowerError) and file.name in str(error)


def test_a_sink_of_a_wrong_kind(shared: Daemon, filled: Table) -> None:
    def make(_: FollowedTable) -> FollowerSink:
        raise RuntimeError("no such place")

    follower = Follower(shared.flight, make, options=OPTIONS)
    follower.follow(*filled)
    with follower, pytest.raises(SinkFailed, match="no such place"):
        follower.wait_current(20)
    follower = Follower(shared.flight, lambda of: object(), options=OPTIONS)  # type: ignore[arg-type, return-value]
    follower.follow(*filled)
    with follower, pytest.raises(InvalidRequest, match="expected a FollowerSink"):
        follower.wait_current(20)


def test_a_follower_without_a_name_whose_state_is_kept_at_the_daemon(
    shared: Daemon, filled: Table
) -> None:
    follower = Follower(shared.flight, lambda of: PlainSink(of, Disk()), options=OPTIONS)
    follower.follow(*filled)
    with follower, pytest.raises(InvalidRequest, match="needs a name"):
        follower.wait_current(20)


def test_a_daemon_that_is_not_there() -> None:
    follower = Follower("grpc://127.0.0.1:1", lambda of: MemorySink(of, Disk()), options=OPTIONS)
    follower.follow("n", "t")
    with pytest.raises(Unreachable):
        follower.start()


def test_a_table_twice_or_none_or_after_the_start(shared: Daemon, filled: Table) -> None:
    follower = Follower(shared.flight, lambda of: MemorySink(of, Disk()), options=OPTIONS)
    with pytest.raises(InvalidRequest, match="at least one table"):
        follower.start()
    follower.follow(*filled)
    with pytest.raises(InvalidRequest, match="twice"):
        follower.follow(*filled)
    with follower, pytest.raises(InvalidRequest, match="has started"):
        follower.follow("n", "other")


def test_a_follower_that_waits_for_news_is_closed_at_once(shared: Daemon, filled: Table) -> None:
    follower = Follower(shared.flight, lambda of: MemorySink(of, Disk()), options=OPTIONS)
    follower.follow(*filled)
    with follower:
        follower.wait_current(20)
        began = time.monotonic()
    assert time.monotonic() - began < OPTIONS.wait_s / 2


def test_a_follower_hears_ctrl_c_at_once(shared: Daemon, filled: Table, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.followers.follower_process", shared.flight]
    process = subprocess.Popen(
        [*command, str(tmp_path / "copy.duckdb"), "/".join(filled)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"current\n"
    began = time.monotonic()
    os.kill(process.pid, signal.SIGINT)
    process.wait(20)
    process.stdout.close()
    assert time.monotonic() - began < 5.0


def _follow(daemon: Daemon, disk: Disk, table: Table) -> None:
    follower = Follower(daemon.flight, lambda of: MemorySink(of, disk), options=OPTIONS)
    follower.follow(*table)
    with follower:
        follower.wait_current(20)


def _state_of(daemon: Daemon, table: Table) -> bytes:
    disk = Disk()
    _follow(daemon, disk, table)
    (state,) = disk.states.values()
    return state
