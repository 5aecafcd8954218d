"""A repeated sequence with other rows is refused by name; without a known content it is reported.

A program that is started again numbers its new batches from 1, as it did before: without a check,
they all would pass for duplicates.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from ingester.client import Client, InvalidRequest, WriteResult
from persist.manifest.origins import MOST_CONTENTS
from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until
from tests.drivers.wire import describe, events, put, rows
from tests.fencing.pairs import start
from tests.origins.senders import TABLE

Life = Callable[[Path, Daemon], Daemon]


def readings(run: int, sequence: int, count: int = 4) -> pa.RecordBatch:
    """What a station measured in one of its runs, on two days."""
    return events(run * 100_000 + sequence * 10, count, days=2)


def send(daemon: Daemon, run: int, first: int, last: int) -> WriteResult:
    """Send batches ``first`` to ``last`` of a run, one at a time."""
    with Client(daemon.flight) as client:
        schema = readings(run, 1).schema
        with client.writer(*TABLE, schema, origin="station-a", first_sequence=first) as writer:
            for sequence in range(first, last + 1):
                writer.write(readings(run, sequence)).result()
            return writer.close()


def as_it_is(folder: Path, daemon: Daemon) -> Daemon:
    return daemon


def in_files(folder: Path, daemon: Daemon) -> Daemon:
    with Client(daemon.flight) as client:
        client.persist(*TABLE)
    return daemon


def killed(folder: Path, daemon: Daemon) -> Daemon:
    daemon.kill()
    return daemon.again()


def stopped(folder: Path, daemon: Daemon) -> Daemon:
    assert daemon.terminate() == 0
    return daemon.again()


def killed_with_files(folder: Path, daemon: Daemon) -> Daemon:
    return killed(folder, in_files(folder, daemon))


def disk_lost(folder: Path, daemon: Daemon) -> Daemon:
    in_files(folder, daemon).kill()
    shutil.rmtree(daemon.data_dir)
    return daemon.again()


def other_daemon(folder: Path, daemon: Daemon) -> Daemon:
    in_files(folder, daemon).kill()
    return start(folder, "b", id="b")


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with start(tmp_path, "a", id="a") as daemon:
        yield daemon


@pytest.mark.parametrize(
    "then",
    [as_it_is, in_files, killed, stopped, killed_with_files, disk_lost, other_daemon],
    ids=lambda life: life.__name__,
)
def test_a_program_that_numbers_other_rows_from_one_again_is_refused(
    tmp_path: Path, daemon: Daemon, then: Life, caplog: pytest.LogCaptureFixture
) -> None:
    send(daemon, 1, 1, 9)
    with then(tmp_path, daemon) as daemon:
        with pytest.raises(InvalidRequest, match="4 rows then, 4 now") as exc:
            send(daemon, 2, 1, 9)
        assert "origin 'station-a': sequence 1 of table" in str(exc.value)
        assert "sequences above 9, the newest known one" in str(exc.value)
        # The same rows are duplicates, and what the error advises works.
        assert send(daemon, 1, 1, 9).duplicates == 9
        assert "all 9 batches (36 rows, sequences 1 to 9) were known" in caplog.text
        assert send(daemon, 2, 10, 12).duplicates == 0
        with Client(daemon.flight) as client:
            assert client.query(*TABLE).num_rows == 12 * 4


def test_a_repeat_with_another_number_of_rows_is_refused(daemon: Daemon) -> None:
    send(daemon, 1, 1, 3)
    with fl.connect(daemon.flight) as client:
        for repeat in (readings(1, 2, 3), readings(1, 2, 5), readings(1, 2, 0)):
            with pytest.raises(pa.ArrowInvalid, match=rf"4 rows then, {repeat.num_rows} now"):
                put(client, TABLE, repeat, origin="station-a", metadata=[{"sequence": 2}])


def test_of_many_batches_in_files_the_first_and_the_newest_are_known(
    tmp_path: Path, daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    last = 3 * MOST_CONTENTS
    for first in range(1, last, MOST_CONTENTS):
        send(daemon, 1, first, first + MOST_CONTENTS - 1)
        in_files(tmp_path, daemon)
    with stopped(tmp_path, daemon) as daemon:
        for known in (1, last - MOST_CONTENTS + 2, last):
            with pytest.raises(InvalidRequest, match=f"sequence {known} of table"):
                send(daemon, 2, known, known)
        # Their content is not known any more: they are not written, and the client warns.
        with caplog.at_level(logging.WARNING, "ingester.client"):
            assert send(daemon, 2, 2, 4).duplicates == 3
        assert "sequences 2 to 4) were known, so nothing was added" in caplog.text
        assert f"the newest known sequence is {last}" in caplog.text
        with Client(daemon.flight) as client:
            assert client.query(*TABLE).num_rows == last * 4


def test_columns_that_others_add_do_not_matter(tmp_path: Path, daemon: Daemon) -> None:
    send(daemon, 1, 1, 2)
    with fl.connect(daemon.flight) as client:
        more = readings(3, 1).append_column("new", pa.array([1, 2, 3, 4]))
        put(client, TABLE, more, origin="other", metadata=[{"sequence": 1}])
        nulls = readings(1, 2).append_column("new", pa.nulls(4, pa.int64()))
        for repeat in (readings(1, 2), nulls, nulls.select(["new", "i", "v", "host", "time"])):
            (answer,) = put(client, TABLE, repeat, origin="station-a", metadata=[{"sequence": 2}])
            assert answer["duplicate"]
        with pytest.raises(pa.ArrowInvalid, match="sequence 2"):
            put(
                client,
                TABLE,
                readings(1, 2).append_column("new", pa.array([None, None, None, 1], pa.int64())),
                origin="station-a",
                metadata=[{"sequence": 2}],
            )


def test_a_batch_that_is_partly_in_files_has_to_be_the_same(tmp_path: Path) -> None:
    """The disk is lost when one of two partitions is in files."""

    def batch(host: str) -> pa.RecordBatch:
        hosts = [host * 60_000, host]
        return events(0, 2, days=2).set_column(1, "host", pa.array(hosts))

    with start(tmp_path, "a", persist__max_partition_bytes="32KiB") as daemon:
        with fl.connect(daemon.flight) as client:
            put(client, TABLE, batch("a"), origin="station-a", metadata=[{"sequence": 1}])
            until(lambda: describe(client, TABLE)["persisted"]["rows"] == 1, "day 0 to persist")
        daemon.kill()
        shutil.rmtree(daemon.data_dir)
        with daemon.again() as daemon, fl.connect(daemon.flight) as client:
            with pytest.raises(pa.ArrowInvalid, match="sequence 1 of table"):
                put(client, TABLE, batch("b"), origin="station-a", metadata=[{"sequence": 1}])
            put(client, TABLE, batch("a"), origin="station-a", metadata=[{"sequence": 1}])
            assert rows(client, TABLE) == [0, 1]


def test_numbered_rows_may_be_divided_differently(
    daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    whole = readings(1, 1, 12)

    def write(batch_rows: int) -> WriteResult:
        with (
            Client(daemon.flight) as client,
            client.writer(
                *TABLE, whole.schema, origin="file-1", first_sequence=1, numbers_rows=True
            ) as writer,
        ):
            for at in range(0, 12, batch_rows):
                writer.write(whole.slice(at, batch_rows))
            return writer.close()

    assert write(4).duplicates == 0
    result = write(6)
    assert result.duplicates == result.batches
    assert "(12 rows, sequences 1 to 12) were known" in caplog.text
    with Client(daemon.flight) as client:
        assert client.query(*TABLE).num_rows == 12


def test_deletes_are_compared_too(daemon: Daemon) -> None:
    with Client(daemon.flight) as client:
        schema = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
        client.create_table("space", "keyed", schema, primary_key=["k"])
        data = pa.table({"k": [1, 2, 3], "v": ["a", "b", "c"]}, schema=schema)
        client.write("space", "keyed", data, origin="o", first_sequence=1)
        keys = pa.table({"k": [1, 2]})
        client.delete("space", "keyed", keys, origin="o", first_sequence=2)
        client.delete("space", "keyed", keys, origin="o", first_sequence=2)
        with pytest.raises(InvalidRequest, match="sequence 2 of table"):
            client.delete("space", "keyed", pa.table({"k": [1, 3]}), origin="o", first_sequence=2)
        assert client.query("space", "keyed").num_rows == 1
