"""Table "persist": rows a second from a buffer to a committed, sorted file.

The baseline is plain pyarrow, which sorts the same rows by the same columns and writes them with
the same settings in an otherwise idle process. "Encode" is the work of the daemon's worker
threads; "daemon" is the time from the request to the committed version.
"""

from __future__ import annotations

import time

import pyarrow as pa

from persist.parquet.encode import encode_sorted
from persist.partitioning import PartitionSpec
from persist.table import TableDefinition
from tests.bench.effort import Bench
from tests.bench.plain import write_sorted
from tests.bench.report import Table, Target
from tests.bench.requests import ask, fill
from tests.bench.requests import persist as persist_now
from tests.bench.rows import SCHEMA, batches_of
from tests.bench.samples import Samples

NAME = "persist"
_BATCH_ROWS = 10_000


def run(bench: Bench) -> list[Table]:
    """Measure the three rates, and the bytes per row of the files."""
    rows = bench.effort.persist_rows
    table = Table(
        NAME,
        f"Persist: {rows:,} rows sorted by region, host, time and written",
        ["who", "rows/s", "of pyarrow", "bytes/row"],
    )
    arrived = pa.Table.from_batches(batches_of(rows, _BATCH_ROWS, seed=0))
    seconds: dict[str, list[float]] = {"pyarrow": [], "encode": [], "daemon": []}
    sizes: dict[str, int] = {}
    folder = bench.new_folder()
    with bench.daemon(persist__target_file_bytes="1GiB") as daemon:
        for repeat in range(bench.effort.repeats):
            bench.say(f"repeat {repeat + 1} of {bench.effort.repeats}")
            fill(daemon, f"t{repeat}", rows, _BATCH_ROWS)
            began = time.perf_counter()
            persist_now(daemon, f"t{repeat}")
            seconds["daemon"].append(time.perf_counter() - began)
            began = time.perf_counter()
            sizes["pyarrow"] = write_sorted(arrived, folder / "plain.parquet")
            seconds["pyarrow"].append(time.perf_counter() - began)
            began = time.perf_counter()
            sizes["encode"] = _encode(arrived)
            seconds["encode"].append(time.perf_counter() - began)
        sizes["daemon"] = _file_bytes(daemon.flight, "t0")
    _fill_in(table, arrived.num_rows, seconds, sizes)
    return [table]


def _encode(arrived: pa.Table) -> int:
    definition = TableDefinition(SCHEMA, PartitionSpec(()))
    files = encode_sorted(arrived, definition, metadata={}, target_bytes=1 << 40)
    return sum(int(file.data.size) for file in files)


def _file_bytes(flight: str, table: str) -> int:
    size: int = ask(flight, "describe_table", table)["persisted"]["bytes"]
    return size


def _fill_in(
    table: Table, rows: int, seconds: dict[str, list[float]], sizes: dict[str, int]
) -> None:
    rates = {
        who: Samples(tuple(rows / each for each in taken), "/s") for who, taken in seconds.items()
    }
    for who, name in (
        ("pyarrow", "plain pyarrow, sort_by and write_table"),
        ("encode", "encode: the same in the daemon's way"),
        ("daemon", "daemon: from request to commit"),
    ):
        table.add(
            who=name,
            rows__s=rates[who],
            of_pyarrow=rates[who].over(rates["pyarrow"]),
            bytes__row=Samples((sizes[who] / rows,), "B"),
        )
    ratio = rates["daemon"].over(rates["pyarrow"])
    table.targets.append(Target("persist, of plain pyarrow sorting and writing", 0.8, ratio))
