"""An acknowledged batch is recognized as a duplicate after a kill or a stop."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pyarrow.flight as fl
import pytest

from tests.drivers.daemon import Daemon
from tests.drivers.wire import (
    ARROW_AND_FLIGHT,
    Stream,
    Table,
    events,
    origin_of,
    persist,
    put_sequences,
    rows,
    writing,
)


@pytest.mark.parametrize("persisted", [False, True])
@pytest.mark.parametrize("clean", [False, True])
def test_a_duplicate_is_one_after_kill_and_stop(
    tmp_path: Path, table: Table, persisted: bool, clean: bool
) -> None:
    with Daemon.start(tmp_path / "data") as daemon:
        with fl.connect(daemon.flight) as client:
            put_sequences(client, table, "o", 1, 5)
            if persisted:
                persist(client, table)
                put_sequences(client, table, "o", 6, 7)
        if clean:
            assert daemon.terminate() == 0
        else:
            daemon.kill()
        with daemon.again() as restarted, fl.connect(restarted.flight) as client:
            last = 7 if persisted else 5
            found = origin_of(client, "o")
            assert found["memory_sequence"] == last
            answers = put_sequences(client, table, "o", 1, last + 1)
            assert [answer["duplicate"] for answer in answers] == [True] * last + [False]
            assert answers[0]["first"]
            assert rows(client, table) == list(range(10, 10 * (last + 2)))


def test_a_client_that_repeats_after_each_kill_adds_each_row_once(
    tmp_path: Path, table: Table
) -> None:
    daemon = Daemon.start(tmp_path / "data", persist__max_age="200ms")
    acknowledged = -1
    for kill_after in (30, 70, 110, 150):
        with fl.connect(daemon.flight) as client:
            batch = events(0, 1)
            stream = Stream(client, writing(table, "o"), batch.schema)
            # Everything since the last answer that the client has read, and some batches before it.
            for n in range(max(0, acknowledged - 5), kill_after + 20):
                stream.send(events(n * 10, 10, days=3), {"sequence": n})
            n = max(0, acknowledged - 5)
            while n < kill_after:
                assert stream.answer() is not None
                acknowledged = max(acknowledged, n)
                n += 1
            daemon.kill()
            with suppress(*ARROW_AND_FLIGHT):
                stream.rest()
            with pytest.raises(ARROW_AND_FLIGHT):
                stream.close()
        daemon = daemon.again()
    with daemon, fl.connect(daemon.flight) as client:
        put_sequences(client, table, "o", acknowledged - 5, 200)
        assert rows(client, table) == list(range(2010))
        persist(client, table)
        assert rows(client, table) == list(range(2010))
