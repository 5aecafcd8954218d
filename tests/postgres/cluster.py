"""A PostgreSQL server of the tests' own, with logical decoding."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.peers.installing import Installation
from tests.bench.peers.server import Server, unprivileged_user

SETTINGS = {
    "listen_addresses": "",
    "wal_level": "logical",
    "max_wal_senders": "4",
    "max_replication_slots": "4",
    "fsync": "off",
    "synchronous_commit": "off",
    "shared_buffers": "128MB",
    "max_connections": "20",
    "lc_messages": "C",
    "timezone": "Asia/Kolkata",
    "datestyle": "german",
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running server."""

    dsn: str
    programs: Path
    """Where ``pgbench`` and the like are."""
    environment: dict[str, str]

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """What the last statement answers; each is a transaction."""
        import psycopg2

        connection = psycopg2.connect(self.dsn)
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
                return [] if cursor.description is None else list(cursor.fetchall())
        finally:
            connection.close()

    def pgbench(self, *arguments: str) -> subprocess.Popen[bytes]:
        """``pgbench``, just started."""
        return subprocess.Popen(
            [str(self.programs / "pgbench"), *arguments, self.dsn],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )


@contextmanager
def serve(folder: Path) -> Iterator[Cluster]:
    """A cluster in a folder.

    Raises:
        Missing: there is no PostgreSQL here, and none can be had.
    """
    import os

    installation = Installation(folder / "installed", installs=True, say=lambda text: None)
    program = installation.debian("postgresql", "postgres", "usr/lib/postgresql/*/bin/postgres")
    user = unprivileged_user()
    place = Path(tempfile.mkdtemp(prefix="pg-"))  # Its sockets' paths may have 107 bytes.
    environment = {**os.environ, **program.environment}
    try:
        if user is not None:
            shutil.chown(place, user)
        made = subprocess.run(
            [
                *(str(program.path.with_name("initdb")), "-D", str(place / "data")),
                *("-U", "bench", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"),
            ],
            env=environment,
            cwd="/",
            user=user,
            extra_groups=None if user is None else [],
            capture_output=True,
            text=True,
            check=False,
        )
        assert made.returncode == 0, made.stderr
        settings = {**SETTINGS, "unix_socket_directories": str(place)}
        arguments = [part for pair in settings.items() for part in ("-c", "=".join(pair))]
        command: list[str | Path] = [program.path, "-D", place / "data", *arguments]
        ready = "ready to accept connections"
        with Server(command, ready, environment=program.environment, user=user):
            dsn = f"host={place} user=bench dbname=postgres"
            yield Cluster(dsn, program.path.parent, environment)
    finally:
        shutil.rmtree(place, ignore_errors=True)
