"""PostgreSQL: binary ``COPY`` into a plain logged table, a transaction per batch.

A ``COPY`` returns when its commit record is synced (``synchronous_commit = on``, ``fsync =
on``). No checkpoint occurs within a burst, and nothing is archived or replicated.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tests.bench.peers.installing import Installation, Missing
from tests.bench.peers.peer import Peer, Promise
from tests.bench.peers.server import Server, unprivileged_user

_SETTINGS = {
    "listen_addresses": "",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "8GB",
    "min_wal_size": "1GB",
    "checkpoint_timeout": "1d",
    "wal_buffers": "64MB",
    "shared_buffers": "2GB",
    "max_connections": "40",
    "jit": "off",
    "autovacuum": "off",
    "bgwriter_lru_maxpages": "0",
    "track_activities": "off",
    "track_counts": "off",
    "lc_messages": "C",
}
_SEGMENT_MIB = 64
_SEGMENTS = 8
"""Log segments that exist before the first batch, as at a server that has run for a while."""
_EPOCH_US = 946_684_800_000_000
"""2000-01-01, PostgreSQL's epoch, in microseconds of Unix time."""
_HEAD = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TAIL = b"\xff\xff"
_COLUMNS = (
    "time timestamptz, host text, region text, load double precision, temperature double precision"
)


@contextmanager
def serve(folder: Path, installation: Installation) -> Iterator[str]:
    """Run a new cluster; yields its connection string."""
    program = installation.debian("postgresql", "postgres", "usr/lib/postgresql/*/bin/postgres")
    user = unprivileged_user()
    sockets = Path(tempfile.mkdtemp(prefix="pg-"))  # Socket paths have at most 107 bytes.
    try:
        for each in (folder, sockets):
            if user is not None:
                shutil.chown(each, user)
        cluster = folder.resolve() / "cluster"
        _make_cluster(program.path.with_name("initdb"), cluster, program.environment, user)
        settings = {**_SETTINGS, "unix_socket_directories": str(sockets)}
        arguments = [part for pair in settings.items() for part in ("-c", "=".join(pair))]
        command: list[str | Path] = [program.path, "-D", cluster, *arguments]
        ready = "ready to accept connections"
        with Server(command, ready, environment=program.environment, user=user):
            yield f"host={sockets} user=bench dbname=postgres"
    finally:
        shutil.rmtree(sockets, ignore_errors=True)


def _make_cluster(
    initdb: Path, cluster: Path, environment: dict[str, str], user: str | None
) -> None:
    command = [initdb, "-D", cluster, "-U", "bench", "-A", "trust", "-E", "UTF8", "--no-locale"]
    made = subprocess.run(
        [*map(str, command), f"--wal-segsize={_SEGMENT_MIB}"],
        env={**os.environ, **environment},
        cwd="/",
        user=user,
        extra_groups=None if user is None else [],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        raise Missing(f"initdb failed: {' | '.join(made.stderr.strip().splitlines()[-3:])}")


class Cluster:
    """The server at an address."""

    def __init__(self, address: str) -> None:
        import psycopg

        self._address = address
        self._warm = False
        with psycopg.connect(address) as connection:
            self.version = str(connection.execute("SHOW server_version").fetchone()[0]).split()[0]

    def create(self, table: str) -> None:
        """Create a plain, logged table without an index."""
        import psycopg

        if not self._warm:
            self._warm_up()
        with psycopg.connect(self._address) as connection:
            connection.execute(f"CREATE TABLE IF NOT EXISTS {table} ({_COLUMNS})")

    def _warm_up(self) -> None:
        """Fill segments of the log and free them, so that later writes reuse them."""
        import psycopg

        with psycopg.connect(self._address, autocommit=True) as connection:
            for _ in range(_SEGMENTS):
                connection.execute("CREATE TABLE warm_up ()")
                connection.execute("DROP TABLE warm_up")
                connection.execute("SELECT pg_switch_wal()")
            connection.execute("CHECKPOINT")
        self._warm = True

    def settle(self) -> None:
        """Run a checkpoint: write the pages that only the log has."""
        import psycopg

        with psycopg.connect(self._address, autocommit=True) as connection:
            connection.execute("CHECKPOINT")

    def writer(self, table: str) -> Copies:
        """Return a new connection."""
        return Copies(self._address, table)


class Copies:
    """Writes with binary ``COPY … FROM STDIN``, a transaction each."""

    def __init__(self, address: str, table: str) -> None:
        import psycopg

        self._connection = psycopg.connect(address, autocommit=True)
        self._libpq = self._connection.pgconn
        # Otherwise another writer of this process waits while this one sends.
        self._libpq.nonblocking = 1
        self._copy = f"COPY {table} FROM STDIN (FORMAT BINARY)".encode()
        self._done = psycopg.pq.ExecStatus.COMMAND_OK

    def encode(self, batch: pa.RecordBatch) -> bytes:
        """Return the whole input stream of ``COPY``."""
        return copy_stream(batch)

    def write(self, encoded: bytes) -> None:
        """Run one ``COPY`` with libpq calls: for small batches the cursor's cost is a tenth."""
        libpq = self._libpq
        libpq.exec_(self._copy)
        libpq.put_copy_data(encoded)
        libpq.put_copy_end()
        result = libpq.get_result()
        if result is None or result.status != self._done:
            raise RuntimeError(libpq.error_message.decode(errors="replace").strip())
        while libpq.get_result() is not None:
            pass

    def close(self) -> None:
        self._connection.close()


def copy_stream(batch: pa.RecordBatch) -> bytes:
    """A batch in the binary format of ``COPY``: a head, rows as (count, (length, bytes)…), a tail.

    Source: the manual of ``COPY``, "Binary Format". All numbers are big-endian. The strings of
    one column have one length here, so that rows are records of one size.
    """
    fields = [("columns", ">i2")]
    arrays: list[npt.NDArray[Any]] = []
    values: npt.NDArray[Any]
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if pa.types.is_string(column.type):
            values = np.array(column.to_pylist(), dtype="S")
            assert set(map(len, values.tolist())) == {values.itemsize}
            kind = f"S{values.itemsize}"
        elif pa.types.is_timestamp(column.type):
            values, kind = column.view(pa.int64()).to_numpy() - _EPOCH_US, ">i8"
        else:
            values, kind = column.to_numpy(), ">f8"
        fields += [(f"{name} length", ">i4"), (name, kind)]
        arrays.append(values)
    rows = np.empty(batch.num_rows, dtype=fields)
    rows["columns"] = len(arrays)
    for name, values in zip(batch.schema.names, arrays, strict=True):
        rows[f"{name} length"] = rows.dtype[name].itemsize
        rows[name] = values
    return _HEAD + rows.tobytes() + _TAIL


PEER = Peer(
    name="PostgreSQL",
    promise=Promise("committed, its write-ahead log synced", True, "to all, at acknowledgement"),
    open=Cluster,
    packages=("psycopg[binary]",),
    serve=serve,
    processes=4,
)
