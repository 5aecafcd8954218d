"""Table "postgres_copy": a first copy of a PostgreSQL table, compared with ``COPY`` to a file.

All parties read the same rows of one server in turns. Two steps between the file and the copy
are measured too: reading and dropping the rows, and converting them to record batches.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from ingester.client import Client
from ingester.postgres.catalog import read_tables
from ingester.postgres.connection import ask, connect
from ingester.postgres.copy_stream import CopyBlocks, read_block, rows_at_most
from ingester.postgres.copying import copy_statement, copy_table
from ingester.postgres.facts import TableFacts
from ingester.postgres.snapshot import SourceSnapshot
from ingester.postgres.states import Shape, ShapeColumn
from ingester.postgres.types import column_type
from persist.prefetch import one_ahead
from tests.bench.effort import Bench
from tests.bench.peers.installing import Missing
from tests.bench.report import Table, Target
from tests.bench.samples import Samples
from tests.postgres.cluster import Cluster, serve

NAME = "postgres_copy"
_COLUMNS = ["what", "seconds", "rows/s", "of COPY to a file"]
_SOURCE = "pgbench_accounts"
_ROWS_OF_SCALE = 100_000
_TO_FILE, _COPIED = "COPY to a file", "copied into the daemon"
WANTED = 0.5


def run(bench: Bench) -> list[Table]:
    """Measure the seconds of a copy, of its parts, and of its upper bound."""
    rows = bench.effort.postgres_scale * _ROWS_OF_SCALE
    table = Table(NAME, f"PostgreSQL: the first copy of {rows:,} rows of pgbench", _COLUMNS)
    try:
        with serve(bench.new_folder()) as cluster:
            _measure(bench, cluster, table, rows)
    except Missing as exc:
        table.notes.append(f"skipped: {exc}")
    return [table]


def _measure(bench: Bench, cluster: Cluster, table: Table, rows: int) -> None:
    bench.say(f"pgbench makes {rows:,} rows")
    scale = f"--scale={bench.effort.postgres_scale}"
    making = cluster.pgbench("--initialize", scale, "--quiet")
    said, _ = making.communicate()
    if making.returncode:
        raise Missing(f"pgbench failed: {said.decode()[-200:]}")
    with bench.daemon() as daemon, Client(daemon.flight) as client:
        parties: dict[str, Callable[[], int]] = {
            _TO_FILE: lambda: _to_file(cluster, bench.folder / "copy.csv"),
            "read and dropped": lambda: _read(cluster.dsn, parsed=False),
            "made record batches": lambda: _read(cluster.dsn, parsed=True),
            _COPIED: lambda: _copied(cluster.dsn, client),
        }
        found: dict[str, list[float]] = {what: [] for what in parties}
        for repeat in range(bench.effort.heavy_repeats + 1):  # the first of each warms up
            for what, act in parties.items():
                bench.say(f"{what}, repeat {repeat} of {bench.effort.heavy_repeats}")
                began = time.perf_counter()
                done = act()
                if done != rows:
                    raise AssertionError(f"{what}: {done} of {rows} rows")
                if repeat:
                    found[what].append(time.perf_counter() - began)
    beside = Samples(tuple(found[_TO_FILE]), "s")
    for what, seconds in found.items():
        mine = Samples(tuple(seconds), "s")
        ratio = beside.over(mine)
        per_s = Samples(tuple(rows / each for each in seconds), "/s")
        table.rows.append(dict(zip(_COLUMNS, (what, mine, per_s, ratio), strict=True)))
        if what == _COPIED:
            table.targets.append(Target("speed of a first copy, of COPY to a file", WANTED, ratio))
    table.notes.append("COPY to a file: psql's \\copy, on the same machine as server and daemon")


def _to_file(cluster: Cluster, path: Path) -> int:
    command = f"\\copy (SELECT * FROM {_SOURCE}) TO '{path}' (FORMAT csv)"
    done = subprocess.run(
        [str(cluster.programs / "psql"), "-X", "-c", command, cluster.dsn],
        env=cluster.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    path.unlink()
    return int(done.stdout.split()[1])


def _read(dsn: str, *, parsed: bool) -> int:
    with closing(connect(dsn, replication=True)) as connection:
        facts, shape = _source(dsn)
        statement = copy_statement(facts, shape)
        blocks = CopyBlocks(connection, statement, rows_at_most(shape), lambda: False)
        try:
            for _ in one_ahead(read_block(each, shape) for each in blocks) if parsed else blocks:
                pass
            return blocks.rows
        finally:
            blocks.end()


def _copied(dsn: str, client: Client) -> int:
    with SourceSnapshot.take(dsn, "bench", lambda: False) as snapshot:
        facts, shape = _source(dsn)
        args = (client, "bench", "postgres:bench", lambda: b"the state")
        return copy_table(snapshot, facts, shape, *args).rows


def _source(dsn: str) -> tuple[TableFacts, Shape]:
    with closing(connect(dsn)) as connection:
        [(oid,)] = ask(connection, "SELECT %s::regclass::oid::bigint", f"public.{_SOURCE}")
        [facts] = read_tables(connection, "", [oid])
    columns = (
        ShapeColumn(each.name, each.name, column_type(each.base_oid, each.base_modifier))
        for each in facts.columns
    )
    return facts, Shape(facts.name, facts.key, tuple(columns), full_identity=False)
