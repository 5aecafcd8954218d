"""The client library repeats acknowledged batches that are not in object storage yet."""

from __future__ import annotations

import shutil
import weakref
from pathlib import Path

import pyarrow as pa
import pytest

from ingester.client import Ack, Client, RetryPolicy
from ingester.client.connection import Connection, Process
from tests.client.wire_cutter import WireCutter
from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until
from tests.fencing.pairs import start
from tests.origins.senders import TABLE, batch, in_files, persisted, rows_of, seen

RETRY = RetryPolicy(for_s=60, first_delay_s=0.02, max_delay_s=0.2)


def port(daemon: Daemon) -> int:
    return int(daemon.flight.rpartition(":")[2])


@pytest.mark.parametrize("moves", [False, True], ids=["the disk is lost", "another daemon answers"])
def test_a_writer_that_keeps_its_batches_survives(tmp_path: Path, moves: bool) -> None:
    first = start(tmp_path, "a", id="a")
    with WireCutter(port(first)) as wire, Client(wire.endpoint, retry=RETRY) as client:
        schema = batch(1).schema
        with client.writer(*TABLE, schema, origin="o", keep_until_durable=True) as writer:
            for number in range(1, 5):
                writer.write(batch(number))
            writer.flush()
            persisted(first)
            for number in range(5, 9):
                writer.write(batch(number))
            writer.flush()
            first.kill()
            if moves:
                second = start(tmp_path, "b", id="b")
            else:
                shutil.rmtree(first.data_dir)
                second = first.again()
            wire.cut(port(second))
            for number in range(9, 11):
                writer.write(batch(number))
            result = writer.close()
        assert (result.batches, result.duplicates) == (10, 0)
        with second:
            assert seen(second) == rows_of(range(1, 11))
            if moves:
                with first.again() as first:
                    assert first.terminate() == 0
            persisted(second)
            assert seen(second) == in_files(tmp_path) == rows_of(range(1, 11))


def test_what_is_durable_is_let_go_of(tmp_path: Path) -> None:
    with start(tmp_path, "a") as daemon, Client(daemon.flight) as client:
        schema = batch(1).schema
        with client.writer(*TABLE, schema, keep_until_durable=True) as writer:
            kept: list[weakref.ref[pa.RecordBatch]] = []

            def write(number: int) -> Ack:
                rows = batch(number)
                kept.append(weakref.ref(rows))
                return writer.write(rows)

            for number in range(1, 5):
                write(number)
            writer.flush()
            assert [rows() is not None for rows in kept] == [True] * 4
            persisted(daemon)
            write(5).result()
            writer.flush()
            until(lambda: not any(rows() for rows in kept[:4]), "the client to let go of them")
            assert kept[4]() is not None


def test_a_disk_that_is_lost_when_the_daemon_was_asked_takes_nothing_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An acknowledged batch was in the log, and the log is lost before the next batch."""
    daemons = [start(tmp_path, "a", id="a")]
    told = Connection.process

    def lost_behind_it(asked: Connection, within_s: float) -> Process | None:
        found = told(asked, within_s)
        if len(daemons) == 1:
            daemons[0].kill()
            shutil.rmtree(daemons[0].data_dir)
            daemons.append(daemons[0].again())
            wire.cut(port(daemons[1]))
        return found

    with WireCutter(port(daemons[0])) as wire, Client(wire.endpoint, retry=RETRY) as client:
        schema = batch(1).schema
        with client.writer(*TABLE, schema, origin="o", keep_until_durable=True) as writer:
            for number in range(1, 5):
                writer.write(batch(number))
            writer.flush()
            persisted(daemons[0])
            for number in range(5, 9):
                writer.write(batch(number))
            writer.flush()
            monkeypatch.setattr(Connection, "process", lost_behind_it)
            wire.cut(port(daemons[0]))
            writer.write(batch(9))
            assert writer.flush().batches == 9
            with daemons[1] as second:
                assert seen(second) == rows_of(range(1, 10))
                second.kill()
            shutil.rmtree(second.data_dir)
            daemons.append(second.again())
            wire.cut(port(daemons[2]))
            # No batch is left to send; the daemon has lost acknowledged ones.
            result = writer.close()
        assert (result.batches, result.duplicates) == (9, 0)
        with daemons[2] as third:
            assert seen(third) == rows_of(range(1, 10))
