"""The client with a real daemon that the tests kill."""

import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from ingester.client import NEVER, Client, RetryPolicy, TableDescription, Unavailable
from tests.bench.requests import metric
from tests.cli.conftest import check_refused, run_command
from tests.client.wire_cutter import WireCutter
from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until

SCHEMA = pa.schema([("v", pa.int64())])


def test_a_writer_survives_kill_9_and_every_row_is_stored_once(tmp_path: Path) -> None:
    total = 3000
    retry = RetryPolicy(for_s=60, first_delay_s=0.02, max_delay_s=0.2)
    daemon = Daemon.start(tmp_path / "d")
    port = int(daemon.flight.rpartition(":")[2])
    with WireCutter(port) as wire, Client(wire.endpoint, retry=retry) as client:
        half_way, restarted = threading.Event(), threading.Event()

        def write() -> None:
            with client.writer("ns", "t", SCHEMA, max_unanswered=50) as writer:
                for n in range(total):
                    writer.write(pa.record_batch([pa.array([n])], schema=SCHEMA))
                    if n == total // 2:
                        half_way.set()
                        assert restarted.wait(60)

        writing = threading.Thread(target=write)
        writing.start()
        assert half_way.wait(60)
        daemon.kill()
        daemon = daemon.again()
        wire.cut(int(daemon.flight.rpartition(":")[2]))
        restarted.set()
        writing.join(90)
        with daemon:
            found = client.query("ns", "t").column("v").to_pylist()
            assert found == list(range(total))


def test_an_abandoned_call_that_is_served_late_does_not_end_the_writer(
    tmp_path: Path,
) -> None:
    """This happens when the daemon's process stood still and then served the newer call first."""

    def batch(n: int) -> pa.RecordBatch:
        return pa.record_batch([pa.array([n] * 1000)], schema=SCHEMA)

    def duplicates() -> float:
        return metric(daemon, "ingester_duplicates_total")

    with Daemon.start(tmp_path / "d") as daemon:
        port = int(daemon.flight.rpartition(":")[2])
        retry = RetryPolicy(for_s=30, first_delay_s=0.01)
        with WireCutter(port) as wire, Client(wire.endpoint, retry=retry) as client:
            client.create_table("ns", "t", SCHEMA)
            wire.hold()
            with client.writer("ns", "t", SCHEMA, origin="o", first_sequence=1) as writer:
                first = writer.write(batch(1))
                until(lambda: wire.held_bytes > 8000, "the first call")
                wire.cut()
                first.result()  # the answer to the second call
                wire.release()
                until(lambda: duplicates() == 1, "the first call to be served, and to take over")
                writer.write(batch(2)).result()
            assert client.query("ns", "t").num_rows == 2000


def test_answers_are_aligned_so_that_a_group_by_warns_of_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Arrow warned once for each column of each batch."""
    rows = pa.table({"host": ["a", "bb", "ccc"] * 20_000, "v": [0.5] * 60_000})
    with Daemon.start(tmp_path / "d") as daemon, Client(daemon.flight) as client:
        client.write("ns", "t", rows)
        client.persist()
        client.write("ns", "t", rows)
        with client.query_stream("ns", "t") as stream:
            streamed = stream.reader().read_all()
        for found in (client.query("ns", "t"), streamed):
            assert found["v"].num_chunks > 1
            sums = found.group_by("host").aggregate([("v", "sum")])
            assert sums.sort_by("host")["v_sum"].to_pylist() == [20_000.0] * 3
    assert "aligned" not in capfd.readouterr().err


def test_a_table_is_created_described_and_persisted(tmp_path: Path) -> None:
    schema = pa.schema([("time", pa.timestamp("us")), ("host", pa.string()), ("v", pa.float64())])
    with Daemon.start(tmp_path / "d") as daemon, Client(daemon.flight) as client:
        made = client.create_table("ns", "t", schema, partition_by=["bucket(4, host)"])
        assert isinstance(made, TableDescription)
        assert made == client.describe("ns", "t")
        assert made.partition_by == ["bucket(4, host)"]
        rows = pa.table({"time": [0, 1], "host": ["a", "b"], "v": [1.0, 2.0]}, schema=schema)
        result = client.write("ns", "t", rows, origin="o")
        assert (result.rows, result.memory_sequence) == (2, 1)
        assert client.query("ns", "t", ["v"], [("host", "=", "b")]).to_pylist() == [{"v": 2.0}]
        (persisted,) = client.persist("ns", "t")
        assert client.query("ns", "t", version=persisted.manifest_version).num_rows == 2
        assert client.query("ns", "t", scope="buffered").num_rows == 0
        assert client.schema("ns", "t").remove_metadata().equals(schema)
        assert [state.origin for state in client.origins("o")] == ["o"]
        assert [table.table for table in client.tables()] == ["t"]


def test_a_schema_is_transiently_refused_while_the_store_is_unreachable(tmp_path: Path) -> None:
    store, away = tmp_path / "store", tmp_path / "away"
    (tmp_path / "a.csv").write_text("v\n1\n")
    with Daemon.start(tmp_path / "d", store=f"file://{store}") as daemon:
        batch = pa.record_batch([pa.array([1])], schema=SCHEMA)
        with Client(daemon.flight, retry=NEVER) as client:
            client.create_table("ns", "open", SCHEMA)
            store.rename(away)
            calls: tuple[Callable[[], object], ...]
            calls = (lambda: client.schema("ns", "new"), client.tables)
            for call in calls:
                with pytest.raises(Unavailable) as refused:
                    call()
                assert (refused.value.code, refused.value.retry_after_s) == ("store", 2.0)
            # An open table takes rows; a call that names an origin gets the cause of its delay.
            writing: tuple[Callable[[], object], ...] = (
                lambda: client.origins("o"),
                lambda: client.origins("o", ("ns", "open")),
                lambda: client.writer("ns", "open", SCHEMA, origin="o").write(batch),
            )
            for call in writing:
                with pytest.raises(
                    Unavailable, match="writes without an origin to open"
                ) as refused:
                    call()
                assert refused.value.code == "store"
                assert "the progress of origin 'o' is read from" in str(refused.value)
        command = ("write", "ns", "new", "a.csv", "--endpoint", daemon.flight)
        failed = run_command(*command, "--retry-for", "0s", cwd=tmp_path)
        check_refused(failed, 4, "the object store cannot be reached")
        away.rename(store)
        assert run_command(*command, cwd=tmp_path).returncode == 0
