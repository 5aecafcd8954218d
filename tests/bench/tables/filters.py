"""Tables "filters-…": partial queries over buffers, files and both; bytes per point lookup.

The expected number of rows is counted in the rows that were written. An answer with another
number of rows is an error of the daemon.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tests.bench.clients import Clients
from tests.bench.effort import Bench
from tests.bench.report import Table, Target
from tests.bench.requests import persist, send, ticket
from tests.bench.rows import HOSTS, HOUR_US, REGIONS, batches_of, in_hour, make_batches
from tests.bench.samples import Samples
from tests.bench.scans import ScanJob, ScanResult
from tests.drivers.daemon import Daemon

NAME = "filters"
_BATCH_ROWS = 10_000
_FILES = 100

Condition = tuple[str, str, Any]


@dataclass(frozen=True, slots=True)
class _Question:
    """A query of a part of a table, and its expected rows."""

    what: str
    columns: Sequence[str] | None
    filter: Sequence[Condition]
    rows: int

    def ticket(self, table: str) -> bytes:
        """The query as a protocol ticket."""
        wanted: dict[str, Any] = {}
        if self.columns is not None:
            wanted["columns"] = list(self.columns)
        if self.filter:
            wanted["filter"] = [[list(condition) for condition in self.filter]]
        return ticket(table, **wanted)


def run(bench: Bench) -> list[Table]:
    """Measure seconds by query and source, then bytes per point lookup over many files."""
    with Clients(1) as clients, bench.daemon() as daemon:
        return [_parts(bench, daemon, clients), _point(bench, daemon, clients)]


def _questions(rows: pa.Table) -> list[_Question]:
    host, region = HOSTS[7].as_py(), REGIONS[2].as_py()
    of_host = rows.filter(pc.equal(rows["host"], host)).num_rows
    return [
        _Question("all", None, [], rows.num_rows),
        _Question("two columns", ["time", "load"], [], rows.num_rows),
        _Question("one host of 100", None, [("host", "=", host)], of_host),
        _point_of(rows, host, region),
    ]


def _point_of(rows: pa.Table, host: str, region: str) -> _Question:
    """A query of one row by the whole sort key."""
    here = pc.and_(pc.equal(rows["host"], host), pc.equal(rows["region"], region))
    found = rows.filter(here)
    at = found["time"][found.num_rows // 2]
    count = found.filter(pc.equal(found["time"], at)).num_rows
    text = at.cast(pa.timestamp("us")).cast(pa.string()).as_py().replace(" ", "T") + "Z"
    conditions = [("region", "=", region), ("host", "=", host), ("time", "=", text)]
    return _Question("a point", None, conditions, count)


def _parts(bench: Bench, daemon: Daemon, clients: Clients) -> Table:
    rows = bench.effort.scan_rows
    table = Table(
        "filters-parts",
        f"Query: parts of {rows:,} rows by one reader",
        ["source", "question", "rows", "first batch", "seconds", "of all"],
        notes=["both: half of the rows in files, half in buffers"],
    )
    batches = batches_of(rows, _BATCH_ROWS, seed=0)
    questions = _questions(pa.Table.from_batches(batches))
    half = len(batches) // 2

    def ask_all(source: str, name: str) -> None:
        beside: Samples | None = None
        for question in questions:
            bench.say(f"{question.what} from {source}")
            found = _asked(bench, daemon, clients, question, name)
            seconds = Samples(tuple(each.seconds for each in found), "s")
            beside = beside or seconds
            table.add(
                source=source,
                question=question.what,
                rows=question.rows,
                first_batch=Samples(tuple(each.first_s for each in found), "s"),
                seconds=seconds,
                of_all=seconds.over(beside),
            )

    send(daemon.flight, "parts", batches)
    ask_all("buffers", "parts")
    persist(daemon, "parts")
    ask_all("files", "parts")
    send(daemon.flight, "halves", batches[:half])
    persist(daemon, "halves")
    send(daemon.flight, "halves", batches[half:])
    ask_all("both", "halves")
    return table


def _asked(
    bench: Bench, daemon: Daemon, clients: Clients, question: _Question, table: str
) -> list[ScanResult]:
    found = []
    for _ in range(bench.effort.repeats + 1):
        found.append(clients.scan(ScanJob(daemon.flight, question.ticket(table))))
        if found[-1].rows != question.rows:
            raise AssertionError(
                f"{question.what}: {found[-1].rows} rows came, {question.rows} are there"
            )
    return found[1:]  # The first one warms up.


def _point(bench: Bench, daemon: Daemon, clients: Clients) -> Table:
    """Write files of one hour each, then look up a point in one of them with a new daemon."""
    file_rows = bench.effort.point_file_rows
    table = Table(
        "filters-point",
        f"Query: a point on the sort key over {_FILES} files of {file_rows:,} rows",
        ["asked", "rows", "seconds", "bytes read", "of the files' bytes"],
        notes=["bytes: what the daemon's process read, its answers' requests included"],
    )
    [within] = make_batches(file_rows, 1, seed=1, within_us=HOUR_US)
    for number in range(_FILES):
        bench.say(f"file {number + 1} of {_FILES}")
        send(daemon.flight, "point", [in_hour(within, number)])
        persist(daemon, "point")
    size = sum(path.stat().st_size for path in _data_files(daemon, "point"))
    rows = pa.Table.from_batches([in_hour(within, _FILES // 2)])
    question = _point_of(rows, HOSTS[7].as_py(), REGIONS[2].as_py())
    daemon.kill()
    with daemon.again() as again:
        for asked in ("first by a new daemon", "again"):
            read = _bytes_read(again)
            found = clients.scan(ScanJob(again.flight, question.ticket("point")))
            assert found.rows == question.rows
            share = Samples(((_bytes_read(again) - read) / size,), "x")
            table.rows.append(
                {
                    "asked": asked,
                    "rows": found.rows,
                    "seconds": Samples((found.seconds,), "s"),
                    "bytes read": Samples((_bytes_read(again) - read,), "B"),
                    "of the files' bytes": share,
                }
            )
            what = f"a point over {_FILES} files, {asked}, of their bytes"
            table.targets.append(Target(what, 0.02, share, below=True))
    return table


def _data_files(daemon: Daemon, table: str) -> list[Path]:
    return [path for path in (daemon.data_dir / "store").rglob("*.parquet") if table in path.parts]


def _bytes_read(daemon: Daemon) -> int:
    lines = Path(f"/proc/{daemon.pid}/io").read_text().splitlines()
    return int(lines[0].removeprefix("rchar: "))
