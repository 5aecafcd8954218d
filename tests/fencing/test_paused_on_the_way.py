"""A real daemon is paused during a flush, as soon as one of its files is visible.

The moment is found by watching the store, so it varies. The assertions do not depend on it.
``test_commit_steps`` covers every step one by one.
"""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pyarrow.flight as fl
import pytest

from tests.drivers.waiting import PATIENCE_S
from tests.drivers.wire import ARROW_AND_FLIGHT, events, persist, rows
from tests.fencing.pairs import (
    Place,
    adopted_rows,
    ask_to_persist,
    fenced,
    on_day,
    pause,
    resume,
    rows_in_files,
    start,
    write,
)

TABLE = ("ns", "t")
DAYS = 12
LATE = 100_000
"""Rows from this number are sent to a daemon that may end before it answers."""


CASES = [
    *itertools.product(["local"], [".parquet", ".changelog", ".commit"], [True, False]),
    *(pytest.param("s3", kind, True, marks=pytest.mark.s3) for kind in (".changelog", ".commit")),
]


@pytest.mark.parametrize(("place", "kind", "touched"), CASES, indirect=["place"])
def test_a_daemon_stopped_in_the_middle_of_a_persist_adds_each_row_once(
    place: Place, kind: str, touched: bool
) -> None:
    store = place.store()

    def there() -> set[str]:
        return {info.path for info in store.list("ns/t/") if info.path.endswith(kind)}

    with ThreadPoolExecutor(1) as threads, start(place, "first") as first:
        write(first, TABLE, events(0, 24, days=2))
        ask_to_persist(first, TABLE)
        for day in range(DAYS):
            write(first, TABLE, on_day(day, 24 + day * 10, 10))
        everything = 24 + DAYS * 10
        before = there()
        asked = threads.submit(ask_to_persist, first, TABLE)
        while there() <= before:
            # Its last act may be one commit, which then exists.
            assert not asked.done() or there() > before
        pause(first)
        with start(place, "second") as second:
            newer = list(range(1000, 1010)) if touched else []
            if touched:
                write(second, TABLE, events(1000, 10))
                with fenced(first):
                    resume(first)
                    asked.result(timeout=PATIENCE_S)
                    with suppress(
                        *ARROW_AND_FLIGHT
                    ):  # the daemon may have ended after its last commit
                        write(first, TABLE, events(LATE, 10))
                        ask_to_persist(first, TABLE)
            else:
                resume(first)
                first.kill()
            added = adopted_rows(place, "first")
            assert added in range(0, DAYS * 10 + 11)
            assert adopted_rows(place, "first") == 0
            with fl.connect(second.flight) as client:
                persist(client, TABLE)
                seen = [i for i in rows(client, TABLE) if i < LATE]
                assert seen == sorted([*range(everything), *newer])
            assert second.terminate() == 0
    found = rows_in_files(place, TABLE)
    assert [i for i in found if i < LATE] == sorted([*range(everything), *newer])
    assert len(found) == len(set(found))
