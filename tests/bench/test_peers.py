"""Peers keep what they acknowledge; a missing or failing peer is reported, others continue."""

from __future__ import annotations

import sqlite3
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pytest

from tests.bench.effort import FORMS, Bench
from tests.bench.peers import duck_db, postgresql, sqlite
from tests.bench.peers.field import Field
from tests.bench.peers.installing import Installation
from tests.bench.peers.peer import Peer, WriteJob
from tests.bench.peers.processes import started
from tests.bench.peers.server import Server
from tests.bench.peers.turns import Turns
from tests.bench.rows import make_batches
from tests.bench.samples import Samples
from tests.bench.tables import peers

_JOB = WriteJob("rows", rows=100, writers=3, seconds=0.2, max_rows=20_000)


def _nothing_installed(folder: Path) -> Installation:
    return Installation(folder, installs=False, say=lambda _: None)


def _sums_of_sqlite(folder: Path) -> tuple[int, float]:
    with closing(sqlite3.connect(folder / "rows.sqlite")) as connection:
        found: tuple[int, float] = connection.execute(
            "SELECT count(*), sum(load) FROM rows"
        ).fetchone()
        return found


def _sums_of_duckdb(folder: Path) -> tuple[int, float]:
    with duckdb.connect(folder / "rows.duckdb") as connection:
        found = connection.execute("SELECT count(*), sum(load) FROM rows").fetchone()
        assert found is not None
        return int(found[0]), float(found[1])


@pytest.mark.parametrize(
    ("peer", "sums"),
    [(sqlite.PEER, _sums_of_sqlite), (duck_db.PEER, _sums_of_duckdb)],
    ids=["SQLite", "DuckDB"],
)
def test_acknowledged_rows_of_a_killed_peer_survive(
    tmp_path: Path, peer: Peer, sums: Callable[[Path], tuple[int, float]]
) -> None:
    with started(peer, tmp_path / "data", _nothing_installed(tmp_path)) as running:
        running.wait()
        written = running.write(_JOB)
    assert written.rows == written.batches * _JOB.rows
    assert len(written.latencies) == written.batches > 0
    # The first batch of each writer precedes the clock.
    rows, load = sums(tmp_path / "data")
    assert rows == written.rows + _JOB.writers * _JOB.rows
    assert load / rows == pytest.approx(0.5, abs=0.1)


def test_a_settled_peer_no_longer_needs_its_log(tmp_path: Path) -> None:
    for peer, log in ((sqlite.PEER, "rows.sqlite-wal"), (duck_db.PEER, "rows.duckdb.wal")):
        folder = tmp_path / peer.name
        with started(peer, folder, _nothing_installed(tmp_path)) as running:
            running.wait()
            written = running.write(_JOB)
            assert running.settle() > 0
        (folder / log).unlink(missing_ok=True)
        rows, _ = (_sums_of_sqlite if peer is sqlite.PEER else _sums_of_duckdb)(folder)
        assert rows == written.rows + _JOB.writers * _JOB.rows


def test_a_job_returns_its_rows(tmp_path: Path) -> None:
    with started(sqlite.PEER, tmp_path / "data", _nothing_installed(tmp_path)) as running:
        running.wait()
        written = running.write(replace(_JOB, seconds=3600.0, max_rows=1_500))
    assert written.rows == 1_500


class Refusing(sqlite.Database):
    """A store that refuses each writer after its first batch, before any measurement."""

    def writer(self, table: str) -> sqlite.Inserts:
        """A writer to a table that takes 100 rows."""
        self._connection.execute(
            f"CREATE TRIGGER IF NOT EXISTS full BEFORE INSERT ON {table}"
            f" WHEN (SELECT max(rowid) FROM {table}) >= 100"
            " BEGIN SELECT RAISE(ABORT, 'the table is full'); END"
        )
        return super().writer(table)


@contextmanager
def _ending_server(folder: Path, installation: Installation) -> Iterator[str]:
    with Server(["sh", "-c", "echo cannot listen; exit 3"], "ready"):
        yield ""


def test_a_failed_peer_is_reported_with_its_reason_and_the_others_continue(tmp_path: Path) -> None:
    refusing = replace(sqlite.PEER, name="refusing", open=Refusing)
    ending = replace(sqlite.PEER, name="ending", serve=_ending_server)
    missing = replace(sqlite.PEER, name="missing", packages=("no_such_package[extra]",))
    bench = Bench(FORMS["smoke"], tmp_path / "work", tmp_path, lambda _: None)
    rates, latencies, promises = peers.run(bench, (refusing, ending, missing, sqlite.PEER))
    notes = "\n".join(rates.notes)
    assert "refusing left out: " in notes
    assert "the table is full" in notes
    assert "ending left out: sh did not start: cannot listen" in notes
    assert "missing left out: no_such_package[extra] is not installed here" in notes
    assert "SQLite left out" not in notes
    assert {row["party"] for row in latencies.rows} == {"ingester", "SQLite"}
    for row in rates.rows:
        assert isinstance(row["SQLite"], Samples)
        assert isinstance(row["of best"], Samples)
        assert row["best durable"] == "SQLite"
        assert row.keys().isdisjoint({"ending", "missing"})
    assert [row["version"] for row in promises.rows][2:4] == ["-", "-"]
    assert not list((tmp_path / "work").iterdir())  # The peers' data is deleted.


def test_a_failed_peer_is_not_restarted(tmp_path: Path) -> None:
    ending = replace(sqlite.PEER, name="ending", serve=_ending_server)
    field = Field((ending, sqlite.PEER), _nothing_installed(tmp_path))
    with field.started(tmp_path / "first"):
        assert field.write("ending", _JOB) is None
    reason = field.reasons.pop("ending")
    field.reasons["ending"] = f"once: {reason}"
    with field.started(tmp_path / "second"):
        assert field.write("SQLite", _JOB) is not None
    assert field.reasons == {"ending": f"once: {reason}"}


def test_a_copy_stream_has_the_rows_in_the_binary_format() -> None:
    batch, _ = make_batches(3, 2, seed=1)
    stream = postgresql.copy_stream(batch)
    assert stream.startswith(b"PGCOPY\n\xff\r\n\0" + bytes(8))
    assert stream.endswith(b"\xff\xff")
    # Each row: the number of columns, then each column's length and value.
    rows = list(struct.iter_unpack(">hiqi7si3sidid", stream[19:-2]))
    times, hosts, regions, loads, temperatures = (column.to_pylist() for column in batch.columns)
    start, us = datetime(2000, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
    assert rows == [
        (5, 8, (time - start) // us, 7, host.encode(), 3, region.encode(), 8, load, 8, temperature)
        for time, host, region, load, temperature in zip(
            times, hosts, regions, loads, temperatures, strict=True
        )
    ]


def test_turns_are_taken_in_order_of_arrival() -> None:
    turns, order = Turns(), list[int]()

    def take(number: int) -> None:
        with turns:
            order.append(number)

    threads = [threading.Thread(target=take, args=(number,)) for number in range(5)]
    with turns:
        for waiting, thread in enumerate(threads):
            thread.start()
            while turns.waiting <= waiting:
                pass
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4]
