"""A PostgreSQL server for tests, with logical decoding."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.bench.peers.debian import Program
from tests.bench.peers.installing import Installation, Missing
from tests.bench.peers.server import Server, unprivileged_user
from tests.postgres.versions import unpack_version

SETTINGS = {
    "listen_addresses": "",
    "wal_level": "logical",
    "max_wal_senders": "10",
    "max_replication_slots": "10",
    "max_prepared_transactions": "10",
    "fsync": "off",
    "shared_buffers": "128MB",
    "max_connections": "50",
    "lc_messages": "C",
    "timezone": "Asia/Kolkata",
    "datestyle": "german",
}


class Cluster:
    def __init__(
        self, dsn: str, programs: Path, environment: dict[str, str], start: Callable[[], Server]
    ) -> None:
        """Start the server; ``programs`` is the folder of ``pgbench`` and other programs."""
        self.dsn = dsn
        self.programs = programs
        self.environment = environment
        self._start = start
        self._server = start()

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run each statement as a transaction and return the rows of the last one."""
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
        """Start ``pgbench`` and return its process."""
        return subprocess.Popen(
            [str(self.programs / "pgbench"), *arguments, self.dsn],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    @property
    def crashes(self) -> int:
        """How often one of the server's processes crashed since the server was started."""
        return self._server.said("all server processes terminated; reinitializing")

    def restart(self) -> None:
        """Kill the server, as in a crash, and start it again; no commit is lost."""
        self._server.end()
        self._server = self._start()

    def end(self) -> None:
        """Kill the server."""
        self._server.end()


@contextmanager
def serve(
    folder: Path, version: str | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[Cluster]:
    """Start a server for the block, with its data in a temporary folder.

    Args:
        folder: where the programs are unpacked if they are not installed.
        version: a version from :mod:`tests.postgres.versions`; by default Debian's.
        settings: server settings, in addition to :data:`SETTINGS` or in their place.

    Raises:
        Missing: PostgreSQL is not installed and cannot be downloaded.
    """
    user = unprivileged_user()
    place = Path(tempfile.mkdtemp(prefix="pg-"))  # Socket paths are limited to 107 bytes.
    try:
        if user is not None:
            shutil.chown(place, user)
        program = find_program(folder, place, version)
        environment = {**os.environ, **program.environment}
        initialise(program, place / "data", environment, user)
        said = {**SETTINGS, "unix_socket_directories": str(place), **(settings or {})}
        arguments = [part for pair in said.items() for part in ("-c", "=".join(pair))]
        command: list[str | Path] = [program.path, "-D", place / "data", *arguments]

        def start() -> Server:
            ready = "ready to accept connections"
            return Server(command, ready, environment=program.environment, user=user)

        dsn = f"host={place} user=bench dbname=postgres"
        cluster = Cluster(dsn, program.path.parent, environment, start)
        try:
            yield cluster
        finally:
            cluster.end()
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def serve_or_skip(
    folder: Path, version: str | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[Cluster]:
    """Start a server as :func:`serve` does; if PostgreSQL is missing, skip the tests."""
    with ExitStack() as stack:
        try:
            cluster = stack.enter_context(serve(folder, version, settings))
        except Missing as exc:
            pytest.skip(f"no such PostgreSQL here: {exc}")
        yield cluster


def installed_program(folder: Path, place: Path, version: str | None) -> Program:
    """The server's program; if PostgreSQL is missing, skip the test."""
    try:
        return find_program(folder, place, version)
    except Missing as exc:
        pytest.skip(f"no such PostgreSQL here: {exc}")


def find_program(folder: Path, place: Path, version: str | None) -> Program:
    """The server's program: installed, or of a version unpacked below ``place``."""
    if version is not None:
        return Program(unpack_version(version, place / "programs"))
    installation = Installation(folder / "installed", installs=True, say=lambda text: None)
    return installation.debian("postgresql", "postgres", "usr/lib/postgresql/*/bin/postgres")


def initialise(program: Program, data: Path, environment: dict[str, str], user: str | None) -> None:
    """Initialise a data directory."""
    made = subprocess.run(
        [
            *(str(program.path.with_name("initdb")), "-D", str(data)),
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
