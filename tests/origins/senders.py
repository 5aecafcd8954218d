"""What the tests of origins send, and the rows that they expect.

Sequence ``n`` has the rows ``10 n .. 10 n + 9``, spread over the given days.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from tests.drivers.daemon import Daemon
from tests.drivers.wire import DAY_US, NOON_US, Json, act, events, extra, persist, put, rows
from tests.fencing.pairs import on_day, rows_in_files

TABLE = ("ns", "t")
ORIGIN = "station-7"


def batch(number: int, *, days: int = 3) -> pa.RecordBatch:
    """The rows of a sequence, spread in turn over ``days`` days, one partition each."""
    return events(10 * number, 10, days=days)


def padded(number: int, large: int, small: int) -> pa.RecordBatch:
    """A sequence's rows: 64 KiB or more on day ``large``, the last one on day ``small``."""
    rows_of_it = on_day(0, 10 * number, 10)
    days = [large] * 9 + [small]
    times = pa.array([NOON_US + day * DAY_US for day in days], rows_of_it.schema.field("time").type)
    return rows_of_it.set_column(0, "time", times).set_column(
        1, "host", pa.array([f"{number}" * 8000] * 10)
    )


def send(
    daemon: Daemon, numbers: Iterable[int], *, origin: str = ORIGIN, days: int = 3
) -> list[Json]:
    """Write sequences in one stream and return the answers."""
    numbers = list(numbers)
    batches = [batch(number, days=days) for number in numbers]
    metadata = [{"sequence": number} for number in numbers]
    with fl.connect(daemon.flight) as client:
        while True:
            try:
                return put(client, TABLE, *batches, origin=origin, metadata=metadata)
            except fl.FlightUnavailableError as error:
                # Rows from before the origin's move are not in files yet.
                if extra(error)["code"] != "store":
                    raise


def persisted(daemon: Daemon) -> None:
    """Flush everything that the daemon has."""
    with fl.connect(daemon.flight) as client:
        persist(client, TABLE)


def seen(daemon: Daemon) -> list[Any]:
    """The rows that a query returns."""
    with fl.connect(daemon.flight) as client:
        return rows(client, TABLE)


def known(daemon: Daemon, origin: str = ORIGIN) -> Json | None:
    """What the action ``origins`` reports about one origin."""
    with fl.connect(daemon.flight) as client:
        found = act(client, "origins", origin=origin)
    return found[0] if found else None


def rows_of(numbers: Iterable[int]) -> list[int]:
    """The rows of these sequences."""
    return [10 * number + row for number in numbers for row in range(10)]


def in_files(folder: Path) -> list[Any]:
    """The rows of the newest version's files, read with pyarrow alone."""
    return rows_in_files(folder, TABLE)


def duplicates(answers: list[Json]) -> list[bool]:
    """Whether each answer marks a duplicate."""
    return [answer["duplicate"] for answer in answers]
