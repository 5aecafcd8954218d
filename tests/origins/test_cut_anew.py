"""Rows that are repeated in batches of other sizes are each stored exactly once."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from ingester.cli.exits import CommandFailed
from ingester.cli.row_numbers import RowSender, SentAs
from ingester.client import Ack, Client, RetryPolicy
from tests.drivers.daemon import Daemon
from tests.drivers.ports import steady_flight
from tests.drivers.waiting import until
from tests.drivers.wire import act, describe, events
from tests.fencing.pairs import start
from tests.origins.senders import ORIGIN, TABLE, in_files, persisted, seen


def rows_to(last: int, *, large: tuple[int, int] = (0, 0)) -> pa.RecordBatch:
    """Rows 1 to ``last``, on two days in turn; those in ``large`` have 4 KiB on day 0."""
    batch = events(1, last, days=2)
    hosts = [
        f"{i}" * 4096 if large[0] <= i <= large[1] and i % 2 == 0 else f"h{i}"
        for i in range(1, last + 1)
    ]
    return batch.set_column(1, "host", pa.array(hosts))


def write(daemon: Daemon, rows: pa.RecordBatch, batch_rows: int, first: int | None = 1) -> int:
    """Write all rows in batches of ``batch_rows``; return how many were skipped as known."""
    with Client(daemon.flight) as client:
        numbers = RowSender(client, TABLE, rows.schema, SentAs(ORIGIN, first))
        for at in range(0, rows.num_rows, batch_rows):
            numbers.write(rows.slice(at, batch_rows), lambda ack, count: None)
        numbers.close()
        return numbers.known_rows


def lost(daemon: Daemon) -> Daemon:
    """The same daemon, restarted without its disk."""
    daemon.kill()
    shutil.rmtree(daemon.data_dir)
    return daemon.again()


def all_to(last: int) -> list[int]:
    """The rows expected after writing up to ``last``."""
    return list(range(1, last + 1))


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """One daemon; it flushes buffers on request or when they are large."""
    with start(tmp_path, "d", persist__max_partition_bytes="32KiB") as running:
        yield running


def test_any_cutting_of_any_part_is_exact(daemon: Daemon, tmp_path: Path) -> None:
    chosen = random.Random(29)
    longest = 0

    def some(target: Daemon) -> int:
        newest = longest
        for _ in range(20):
            last = chosen.randrange(1, 400)
            known = write(target, rows_to(last), chosen.choice([1, 7, 10, 100, 1000]))
            assert known == min(newest, last)
            newest = max(newest, last)
            if chosen.random() < 0.2:
                persisted(target)
        return newest

    longest = some(daemon)
    daemon.kill()
    with daemon.again() as again:
        longest = some(again)
        assert seen(again) == all_to(longest)
        persisted(again)
        assert in_files(tmp_path) == all_to(longest)


def test_without_a_first_number_rows_are_new(daemon: Daemon) -> None:
    write(daemon, rows_to(50), 10)
    write(daemon, rows_to(50), 100, first=None)
    assert seen(daemon) == sorted(all_to(50) * 2)


def test_who_writes_as_another_one_is_told_that_and_not_of_rows_that_were_never_sent(
    daemon: Daemon,
) -> None:
    write(daemon, rows_to(5), 10)
    with Client(daemon.flight) as client:
        numbers = RowSender(client, TABLE, rows_to(5).schema, SentAs(ORIGIN))
        write(daemon, rows_to(8), 10, first=1)
        with pytest.raises(CommandFailed, match="its row 6 was already known; give each writer"):
            numbers.write(rows_to(10), lambda ack, count: None)
        numbers.close()
        assert seen(daemon) == all_to(8)
        # The advice: an origin of its own, or numbers of its own.
        for origin, first in (("its own", None), (ORIGIN, 20)):
            numbers = RowSender(client, TABLE, rows_to(5).schema, SentAs(origin, first))
            numbers.write(rows_to(3), lambda ack, count: None)
            numbers.close()
    assert len(seen(daemon)) == 8 + 2 * 3


def test_rows_that_a_lost_disk_takes_while_a_file_is_written_are_named(tmp_path: Path) -> None:
    retry = RetryPolicy(for_s=30, first_delay_s=0.02, max_delay_s=0.2)
    rows = rows_to(20)

    def sender(client: Client) -> RowSender:
        return RowSender(client, TABLE, rows.schema, SentAs(ORIGIN, 1))

    def answered(ack: Ack, count: int) -> None:
        ack.result()

    def send(numbers: RowSender, first: int, last: int) -> None:
        numbers.write(rows.slice(first - 1, last - first + 1), answered)

    with start(tmp_path, "d", arguments=steady_flight()) as daemon:
        write(daemon, rows.slice(0, 4), 10)
        persisted(daemon)
        write(daemon, rows.slice(0, 8), 10)
        with Client(daemon.flight, retry=retry) as client:
            counting = sender(client)  # on rows 5 to 8, which are only in the log
            with lost(daemon) as second:
                with pytest.raises(CommandFailed, match="rows 5 to 8 were known, and were lost"):
                    send(counting, 1, 12)
                counting.abort()
                assert write(second, rows.slice(0, 12), 10) == 4
                assert seen(second) == all_to(12)
                running = sender(client)
                send(running, 1, 16)
                with lost(second) as third:
                    send(running, 17, 20)
                    with pytest.raises(CommandFailed, match="rows 5 to 16 were known"):
                        running.close()
                    write(third, rows, 7)
                    assert seen(third) == all_to(20)


@pytest.mark.parametrize("batch_rows", [1, 7, 25, 1000])
def test_what_one_partition_has_in_files_and_another_lost_with_the_disk(
    daemon: Daemon, tmp_path: Path, batch_rows: int
) -> None:
    write(daemon, rows_to(20), 10)
    persisted(daemon)
    # Day 0 of these is flushed by itself, as its rows are large.
    write(daemon, rows_to(40, large=(21, 40)), 20)
    with fl.connect(daemon.flight) as client:
        until(lambda: describe(client, TABLE)["persisted"]["rows"] == 30, "day 0 to persist")
    write(daemon, rows_to(60, large=(21, 40)), 9)
    daemon.kill()
    shutil.rmtree(daemon.data_dir)
    with daemon.again() as again:
        with fl.connect(again.flight) as client:
            namespace, table = TABLE
            (told,) = act(client, "origins", origin=ORIGIN, namespace=namespace, table=table)
        assert (told["table_sequence"], told["marks"]) == (20, [20, 40])
        known = write(again, rows_to(80, large=(21, 40)), batch_rows)
        assert known == 20
        assert seen(again) == all_to(80)
        persisted(again)
        assert in_files(tmp_path) == all_to(80)


@pytest.mark.parametrize("comes_back", [False, True])
def test_another_daemon_has_them_in_its_log(tmp_path: Path, comes_back: bool) -> None:
    with start(tmp_path, "a", id="a") as first, start(tmp_path, "b", id="b") as second:
        write(first, rows_to(20), 10)
        persisted(first)
        write(first, rows_to(50), 10)
        if not comes_back:
            first.kill()
        assert write(second, rows_to(100), 33) == 20
        assert seen(second) == all_to(100)
        persisted(second)
        if comes_back:
            persisted(first)
            assert first.terminate() == 0
        else:
            with first.again() as again:
                persisted(again)
        assert in_files(tmp_path) == all_to(100)
        assert write(second, rows_to(120), 50) == 100
        assert seen(second) == all_to(120)


def test_an_origin_is_asked_about_by_table(daemon: Daemon) -> None:
    write(daemon, rows_to(10), 10)
    with fl.connect(daemon.flight) as client:
        namespace, table = TABLE
        (told,) = act(client, "origins", origin=ORIGIN, namespace=namespace, table=table)
        assert (told["memory_sequence"], told["table_sequence"]) == (10, 10)
        (told,) = act(client, "origins", origin="stranger", namespace=namespace, table=table)
        assert (told["memory_sequence"], told["table_sequence"], told["marks"]) == (None, None, [])
        with pytest.raises(pa.ArrowInvalid, match="takes 'origin', 'namespace' and 'table'"):
            act(client, "origins", origin=ORIGIN, table=table)
        with pytest.raises(pa.ArrowKeyError):
            act(client, "origins", origin=ORIGIN, namespace=namespace, table="none")
    with Client(daemon.flight) as client:
        # An origin's progress in one table says nothing about another table.
        numbers = RowSender(client, (TABLE[0], "other"), rows_to(5).schema, SentAs(ORIGIN, 1))
        numbers.write(rows_to(5), lambda ack, count: None)
        numbers.close()
        assert client.query(TABLE[0], "other").num_rows == 5


def test_a_client_without_a_number_begins_behind_what_any_partition_has(
    daemon: Daemon, tmp_path: Path
) -> None:
    """A sequence that is partly in files and partly lost is not available for other rows."""
    write(daemon, rows_to(20), 10)
    persisted(daemon)
    write(daemon, rows_to(40, large=(21, 40)), 20)
    with fl.connect(daemon.flight) as client:
        until(lambda: describe(client, TABLE)["persisted"]["rows"] == 30, "day 0 to persist")
    daemon.kill()
    shutil.rmtree(daemon.data_dir)
    with daemon.again() as again, Client(again.flight) as client:
        assert client.write(*TABLE, events(101, 10, days=2), origin=ORIGIN).duplicates == 0
        assert [i for i in seen(again) if i > 100] == list(range(101, 111))
