"""The amount of work of a run, and the resources that every table gets.

The forms differ in amounts only; each measures the same things.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from shutil import rmtree

from tests.bench.changes import KINDS
from tests.drivers.daemon import Daemon, Launch


@dataclass(frozen=True, slots=True)
class Effort:
    """The amounts of one form of the program."""

    touched_bytes: int
    """Memory that is touched once beforehand: what the servers of a table fill at the same time."""
    repeats: int
    heavy_repeats: int
    """Repeats of measurements that start daemons and fill tables."""
    cell_s: float
    """How long writers write for one number."""
    cell_bytes: int
    """A combined limit that ends writing earlier, since servers keep the rows."""
    batch_rows: tuple[int, ...]
    writers: tuple[int, ...]
    partitions: int
    """Partitions of the table with the most; a multiple of 100."""
    sustained_s: float
    """How long writers write while flushes keep up."""
    sustained_peers_s: float
    """The same for each of the peers; 0 in a form without time for them."""
    append_file_bytes: int
    """The size of the preallocated file of the plain append loop."""
    scan_rows: int
    scan_repeats: int
    point_file_rows: int
    """Rows of each file that a point lookup searches."""
    readers: tuple[int, ...]
    reader_rows: int
    persist_rows: int
    beside_rows: int
    """Rows of a flush next to writers: long enough for a p99 of theirs."""
    replay_rows: tuple[int, ...]
    """Scaled down to the available memory and disk."""
    replay_repeats: int
    memory_batch_rows: tuple[int, ...]
    memory_bytes: int
    memory_fill_s: float
    """A limit that ends filling before the byte limit where batches are small."""
    idle_s: float
    spark_rows: int
    """0, and no table, in a form without time to start Spark."""
    spark_small_files: int
    push_rows: int
    """0, and no such table, in a form without time to start Spark."""
    push_layouts: tuple[tuple[str, tuple[str, ...]], ...]
    """Pairs of a name and a partition spec."""
    push_swaps: int
    growth: tuple[int, ...]
    """Multiples of the smallest size; empty for no tables."""
    round_trips: int
    manifest_files: tuple[int, ...]
    manifest_versions: tuple[int, ...]
    manifest_partitions: int
    open_files: tuple[int, ...]
    open_writing_s: float
    open_rows: int
    """0, and no scans, in a form without time to start Spark."""
    sql_data: tuple[str, ...]
    sql_rows: int
    sql_repeats: int
    sql_beside_s: float
    """How long writers and look-ups run for one number."""
    sql_spark: bool
    """Whether there is time to start Spark."""
    replication_repeats: int
    replication_kinds: tuple[str, ...]
    replication_rows: int
    """Rows of a transaction, and the number of transactions."""
    replication_messages: int
    replication_tables: tuple[int, ...]
    """Rows of the tables that a flush replaces rows in."""
    postgres_scale: int
    """pgbench scale: 100,000 rows each."""
    follower_rows: int
    """Rows of a first fill."""
    follower_repeats: int
    follower_live_s: float
    postgres_load_scale: int
    """pgbench scale next to a replicator."""
    postgres_load_s: float
    peer_repeats: int
    peer_touched_bytes: int
    """Memory that is touched again: by then the peers' files have taken the pages touched
    before."""
    peer_turns: int
    """How often each party measures every cell: one disk stall spoils only one turn."""
    peer_rows: tuple[int, ...]
    peer_writers: tuple[int, ...]
    peer_waits: tuple[tuple[int, int], ...]
    """Rows and writers whose acknowledgement latency is compared with the peers'."""
    peer_cell_s: float
    peer_cell_bytes: int
    ack_s: float
    """How long writers write at ``store`` for one number; half of it for the plain loop."""
    ack_everything: bool
    """Whether every kind of write is measured at every store."""
    ack_delays_s: tuple[float, ...]
    """How much later the S3 server answers."""
    ack_turns: int
    peer_installs: bool
    """Whether peers may be installed; otherwise only those of the running Python take part."""


FORMS = {
    "smoke": Effort(
        touched_bytes=64 << 20,
        repeats=1,
        heavy_repeats=1,
        cell_s=0.05,
        cell_bytes=4 << 20,
        batch_rows=(1, 1_000),
        writers=(1, 2),
        partitions=200,
        sustained_s=1,
        sustained_peers_s=0.2,
        append_file_bytes=8 << 20,
        scan_rows=20_000,
        scan_repeats=1,
        point_file_rows=5_000,
        readers=(1, 3),
        reader_rows=20_000,
        persist_rows=20_000,
        beside_rows=20_000,
        replay_rows=(20_000,),
        replay_repeats=1,
        memory_batch_rows=(100,),
        memory_bytes=4 << 20,
        memory_fill_s=0.2,
        idle_s=0.2,
        spark_rows=20_000,
        spark_small_files=20,
        push_rows=0,
        push_layouts=(("one partition", ()),),
        push_swaps=1,
        growth=(1, 3),
        round_trips=10,
        manifest_files=(10, 100),
        manifest_versions=(10, 200),
        manifest_partitions=40,
        open_files=(10, 100),
        open_writing_s=0.3,
        open_rows=0,
        sql_data=("rows",),
        sql_rows=20_000,
        sql_repeats=1,
        sql_beside_s=0.2,
        sql_spark=False,
        replication_repeats=1,
        replication_kinds=("insert", "mixed"),
        replication_rows=500,
        replication_messages=2,
        replication_tables=(1_000,),
        postgres_scale=1,
        follower_rows=20_000,
        follower_repeats=1,
        follower_live_s=0.3,
        postgres_load_scale=1,
        postgres_load_s=1,
        peer_repeats=1,
        peer_touched_bytes=64 << 20,
        peer_turns=1,
        peer_rows=(100, 1_000),
        peer_writers=(1, 2),
        peer_waits=((100, 2),),
        peer_cell_s=0.05,
        peer_cell_bytes=2 << 20,
        ack_s=0.4,
        ack_everything=False,
        ack_delays_s=(0.02,),
        ack_turns=1,
        peer_installs=False,
    ),
    "quick": Effort(
        touched_bytes=3 << 30,
        repeats=2,
        heavy_repeats=1,
        cell_s=0.15,
        cell_bytes=512 << 20,
        batch_rows=(1, 1_000, 10_000),
        writers=(1, 8),
        partitions=200,
        sustained_s=4,
        sustained_peers_s=0,
        append_file_bytes=256 << 20,
        scan_rows=1_000_000,
        scan_repeats=9,
        point_file_rows=20_000,
        readers=(1, 10),
        reader_rows=500_000,
        persist_rows=1_000_000,
        beside_rows=3_000_000,
        replay_rows=(3_000_000,),
        replay_repeats=2,
        memory_batch_rows=(10_000,),
        memory_bytes=192 << 20,
        memory_fill_s=3,
        idle_s=2,
        spark_rows=0,
        spark_small_files=0,
        push_rows=500_000,
        push_layouts=(("one partition", ()),),
        push_swaps=10,
        growth=(),
        round_trips=200,
        manifest_files=(10, 2_000),
        manifest_versions=(10, 2_000),
        manifest_partitions=200,
        open_files=(100, 10_000),
        open_writing_s=2,
        open_rows=0,
        sql_data=("flights", "rows"),
        sql_rows=1_000_000,
        sql_repeats=2,
        sql_beside_s=1,
        sql_spark=False,
        replication_repeats=1,
        replication_kinds=("mixed",),
        replication_rows=10_000,
        replication_messages=5,
        replication_tables=(100_000,),
        postgres_scale=5,
        follower_rows=3_000_000,
        follower_repeats=3,
        follower_live_s=4,
        postgres_load_scale=1,
        postgres_load_s=8,
        peer_repeats=1,
        peer_touched_bytes=2 << 30,
        peer_turns=2,
        peer_rows=(100, 10_000),
        peer_writers=(8,),
        peer_waits=((10_000, 8),),
        peer_cell_s=0.3,
        peer_cell_bytes=256 << 20,
        ack_s=0.8,
        ack_everything=False,
        ack_delays_s=(0.05,),
        ack_turns=2,
        peer_installs=True,
    ),
    "full": Effort(
        touched_bytes=12 << 30,
        repeats=5,
        heavy_repeats=3,
        cell_s=2.0,
        cell_bytes=256 << 20,
        batch_rows=(1, 100, 1_000, 10_000, 100_000),
        writers=(1, 8, 64),
        partitions=10_000,
        sustained_s=600,
        sustained_peers_s=600,
        append_file_bytes=1 << 30,
        scan_rows=20_000_000,
        scan_repeats=5,
        point_file_rows=200_000,
        readers=(1, 10, 100),
        reader_rows=2_000_000,
        persist_rows=2_500_000,
        beside_rows=10_000_000,
        replay_rows=(24_000_000, 120_000_000, 480_000_000),
        replay_repeats=3,
        memory_batch_rows=(1, 100, 1_000, 10_000),
        memory_bytes=3 << 30,
        memory_fill_s=20,
        idle_s=60,
        spark_rows=10_000_000,
        spark_small_files=20_000,
        push_rows=30_000_000,
        push_layouts=(("one partition", ()), ("three days", ("day(time)",))),
        push_swaps=100,
        growth=(1, 10, 100),
        round_trips=3_000,
        manifest_files=(10, 1_000, 100_000),
        manifest_versions=(10, 100_000),
        manifest_partitions=10_000,
        open_files=(100, 100_000),
        open_writing_s=5,
        open_rows=10_000_000,
        sql_data=("flights", "rows"),
        sql_rows=10_000_000,
        sql_repeats=5,
        sql_beside_s=20,
        sql_spark=True,
        replication_repeats=3,
        replication_kinds=KINDS,
        replication_rows=10_000,
        replication_messages=20,
        replication_tables=(10_000, 100_000, 1_000_000, 10_000_000),
        postgres_scale=100,
        follower_rows=20_000_000,
        follower_repeats=5,
        follower_live_s=30,
        postgres_load_scale=10,
        postgres_load_s=60,
        peer_repeats=5,
        peer_touched_bytes=8 << 30,
        peer_turns=1,
        peer_rows=(100, 1_000, 10_000),
        peer_writers=(1, 8),
        peer_waits=((1, 1), (100, 8), (10_000, 8)),
        peer_cell_s=1.0,
        peer_cell_bytes=1 << 30,
        ack_s=10.0,
        ack_everything=True,
        ack_delays_s=(0.02, 0.05, 0.08),
        ack_turns=5,
        peer_installs=True,
    ),
}

BURST = {
    "persist__max_age": "1d",
    "persist__max_partition_bytes": "1TiB",
    "memory__limit": "15GiB",
    "memory__low": "13GiB",
    "memory__high": "14GiB",
    "wal__segment_age": "1d",
    "log__format": "json",
}
"""Settings under which rows are flushed only on request."""


class Bench:
    """One run: its amounts, its folder on the disk, and its progress output."""

    def __init__(
        self, effort: Effort, folder: Path, kept: Path, say: Callable[[str], None]
    ) -> None:
        """``folder`` is deleted after the run, ``kept`` remains for the next one."""
        self.effort = effort
        self.folder = folder
        self.kept = kept
        folder.mkdir(parents=True)
        self.say = say
        self._numbers = count(1)

    def new_folder(self) -> Path:
        """Return a new, unused folder."""
        folder = self.folder / f"data-{next(self._numbers)}"
        folder.mkdir(parents=True)
        return folder

    @contextmanager
    def daemon(
        self, environment: dict[str, str] | None = None, /, **settings: object
    ) -> Iterator[Daemon]:
        """Start a new daemon for bursts; its data is deleted afterwards.

        The caller ends restarts made with ``again``.
        """
        folder = self.new_folder()
        try:
            launch = Launch(folder / "daemon", environment or {}, (), {**BURST, **settings})
            with launch.start() as daemon:
                yield daemon
        finally:
            rmtree(folder, ignore_errors=True)


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process so far, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
