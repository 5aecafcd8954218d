"""A version waits for one buffer while more flushes finish than may wait for a commit."""

from __future__ import annotations

from pathlib import Path

import pyarrow.flight as fl

from ingester.tables.commits import MAX_WAITING_FLUSHES
from tests.drivers.wire import describe, events, persist, put
from tests.fencing.pairs import on_day, start
from tests.origins.senders import ORIGIN, TABLE, in_files, persisted, rows_of

OTHERS = MAX_WAITING_FLUSHES + 400
"""Partitions with a file each; a first commit takes some 128 of them along."""


def test_rows_of_an_origin_that_went_elsewhere_stand_behind_very_many_others(
    tmp_path: Path,
) -> None:
    def send(client: fl.FlightClient, number: int) -> None:
        # Their partition is the last one to be flushed.
        rows = on_day(OTHERS, 10 * number, 10)
        put(client, TABLE, rows, origin=ORIGIN, metadata=[{"sequence": number}])

    with (
        start(tmp_path, "a", id="a") as first,
        start(tmp_path, "b", id="b") as second,
        fl.connect(first.flight) as one,
        fl.connect(second.flight) as two,
    ):
        put(one, TABLE, events(1000, OTHERS, days=OTHERS))
        send(one, 1)
        send(one, 2)
        assert describe(one, TABLE)["buffered"]["partitions"] == OTHERS + 1
        send(two, 2)
        persisted(second)
        persist(one, TABLE)
        send(two, 3)
        persisted(second)
    found = in_files(tmp_path)
    assert sorted(found) == sorted([*rows_of([1, 2, 3]), *range(1000, 1000 + OTHERS)])
