"""Small batches of several origins share records of the log; each is replayed and adopted once."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.daemon import Daemon
from tests.drivers.wire import Stream, writing
from tests.fencing.pairs import adopt, start
from tests.origins.senders import TABLE, batch, duplicates, in_files, persisted, rows_of, seen, send
from wal import Disk, RecordKind
from wal.format import SEGMENT_HEADER_BYTES
from wal.recovery import FileSource
from wal.scan import find_headers

ORIGINS = 6
EACH = 40


def numbers_of(origin: int) -> range:
    return range(1000 * origin + 1, 1000 * origin + 1 + EACH)


def send_ahead(daemon: Daemon, origin: int) -> None:
    """Send an origin's sequences without waiting for answers in between."""
    numbers = numbers_of(origin)
    with (
        fl.connect(daemon.flight) as client,
        Stream(client, writing(TABLE, f"o{origin}"), batch(1).schema) as stream,
    ):
        for number in numbers:
            stream.send(batch(number), {"sequence": number})
        for number in numbers:
            told = stream.answer()
            assert told is not None
            assert (told["memory_sequence"], told["duplicate"]) == (number, False)


def kinds_and_operations(folder: Path) -> tuple[set[int], int]:
    """The kinds of the log's records, and the most operations of one."""
    kinds, most = set(), 1
    for path in (folder / "wal").glob("*.wal"):
        with FileSource(Disk(), path) as source:
            for found in find_headers(source, int(path.stem), SEGMENT_HEADER_BYTES):
                kinds.add(int(found.header.kind))
                most = max(most, found.header.operations)
    return kinds, most


@pytest.mark.parametrize("adopted", [False, True], ids=["replayed", "adopted"])
def test_each_operation_of_a_shared_record_is_there_once_and_known(
    tmp_path: Path, adopted: bool
) -> None:
    first = start(tmp_path, "first")
    send(first, [1], origin="early")  # the table exists
    threads = [threading.Thread(target=send_ahead, args=(first, n)) for n in range(ORIGINS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    every = rows_of([1, *(number for n in range(ORIGINS) for number in numbers_of(n))])
    assert seen(first) == sorted(every)
    first.kill()
    kinds, most = kinds_and_operations(first.data_dir)
    assert RecordKind.LAYOUT_2 in kinds
    assert most > 1
    if adopted:
        assert adopt(tmp_path, "first")[TABLE]["rows"] == len(every)
        second = start(tmp_path, "second")
    else:
        second = first.again()
    with second:
        for origin in range(ORIGINS):
            again = send(second, numbers_of(origin), origin=f"o{origin}")
            assert duplicates(again) == [True] * EACH
        with pytest.raises(pa.ArrowInvalid, match="was written before with other rows"):
            send(second, [numbers_of(0)[-1]], origin="o0", days=1)
        assert seen(second) == sorted(every)
        persisted(second)
        assert in_files(tmp_path) == sorted(every)


@pytest.mark.parametrize("killed", [False, True], ids=["in memory", "replayed"])
def test_operations_of_a_shared_record_that_another_daemon_took_over_are_left_out(
    tmp_path: Path, killed: bool
) -> None:
    origin, numbers = 3, numbers_of(3)
    with start(tmp_path, "a", id="a") as a, start(tmp_path, "b", id="b") as b:
        send(a, [1], origin="early")
        send_ahead(a, origin)
        _, most = kinds_and_operations(a.data_dir)
        assert most > 1
        if killed:
            a.kill()
        # The client has moved, and sends all but the first ten again.
        again = send(b, numbers[10:], origin=f"o{origin}")
        assert duplicates(again) == [False] * (EACH - 10)
        with a.again() if killed else nullcontext(a) as a:
            for daemon in (a, b, a):
                persisted(daemon)
        assert in_files(tmp_path) == sorted(rows_of([1, *numbers]))
