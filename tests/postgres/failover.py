"""A primary and its standbys: real servers that follow each other and are promoted.

    primary ──copy of its files──▶ standby ──copy──▶ cascaded
       └─────────── log ─────────────▶ └────── log ──────▶

The files of a stopped server become a standby, with its logical slots if they are kept, as Patroni
carries them over. A server that is down receives nothing, so it lags exactly behind what was
committed meanwhile. All servers are in one list of hosts, of which libpq finds the primary.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.bench.peers.debian import Program
from tests.bench.peers.server import Server, unprivileged_user
from tests.drivers.waiting import until
from tests.postgres.cluster import SETTINGS, initialise, installed_program

READY = "ready to accept (read-only )?connections"


class Node:
    """One server: its files, and its process while it runs."""

    def __init__(self, program: Program, user: str | None) -> None:
        self.program = program
        self.user = user
        self.place = Path(tempfile.mkdtemp(prefix="pg-"))
        if user is not None:
            shutil.chown(self.place, user)
        self.data = self.place / "data"
        self.server: Server | None = None
        self.settings: dict[str, str] = {}

    @property
    def dsn(self) -> str:
        return f"host={self.place} user=bench dbname=postgres"

    def start(self, **settings: str) -> None:
        self.settings |= settings
        said = {**SETTINGS, "unix_socket_directories": str(self.place), **self.settings}
        arguments = [part for pair in said.items() for part in ("-c", "=".join(pair))]
        command: list[str | Path] = [self.program.path, "-D", self.data, *arguments]
        environment = self.program.environment
        self.server = Server(command, READY, environment=environment, user=self.user)

    def end(self) -> None:
        """Kill the server, as in a crash."""
        server, self.server = self.server, None
        if server is not None:
            server.end()

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

    def lsn(self) -> int:
        [(lsn,)] = self.run("SELECT (pg_current_wal_lsn() - '0/0'::pg_lsn)::int8")
        return int(lsn)


class Servers:
    """A primary, and standbys that are made from it."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._user = unprivileged_user()
        self.nodes: list[Node] = []

    def primary(self) -> Node:
        """A new server."""
        node = self._node()
        environment = {**os.environ, **self._program.environment}
        initialise(self._program, node.data, environment, node.user)
        node.start()
        return node

    def standby(self, of: Node, *, slots: bool = True, **settings: str) -> Node:
        """A standby with what ``of`` has now, including its logical slots unless ``slots`` is
        false. ``of`` is restarted for it."""
        running = dict(of.settings)
        of.end()
        node = self._node()
        subprocess.run(["cp", "-a", str(of.data), str(node.data)], check=True)
        (node.data / "postmaster.pid").unlink(missing_ok=True)
        (node.data / "standby.signal").touch()
        if not slots:
            for each in (node.data / "pg_replslot").iterdir():
                shutil.rmtree(each)
        of.start(**running)
        node.start(primary_conninfo=of.dsn, hot_standby="on", **settings)
        return node

    def snapshot(self, of: Node) -> Path:
        """A copy of the files of a server, which is restarted for it."""
        of.end()
        kept = of.place / "snapshot"
        subprocess.run(["cp", "-a", str(of.data), str(kept)], check=True)
        of.start()
        return kept

    def dsn(self, *nodes: Node) -> str:
        """All servers, of which the one that accepts writes is used."""
        hosts = ",".join(str(node.place) for node in nodes)
        return f"host={hosts} user=bench dbname=postgres target_session_attrs=read-write"

    def end(self) -> None:
        for node in self.nodes:
            node.end()
            shutil.rmtree(node.place, ignore_errors=True)

    def _node(self) -> Node:
        node = Node(self._program, self._user)
        self.nodes.append(node)
        return node


def caught_up(standby: Node, primary: Node) -> None:
    """Wait until the standby has all of the primary's log."""
    end = primary.lsn()
    query = "SELECT (coalesce(pg_last_wal_replay_lsn(), '0/0') - '0/0'::pg_lsn)::int8"
    until(lambda: standby.run(query)[0][0] >= end, "the standby to have all", 30.0)


def promote(node: Node) -> None:
    [(promoted,)] = node.run("SELECT pg_promote()")
    assert promoted


@contextmanager
def servers(folder: Path, version: str | None = None) -> Iterator[Servers]:
    """Servers for the block; skips the test if PostgreSQL is missing."""
    place = Path(tempfile.mkdtemp(prefix="pg-"))
    if (user := unprivileged_user()) is not None:
        shutil.chown(place, user)
    found = Servers(installed_program(folder, place, version))
    try:
        yield found
    finally:
        found.end()
        shutil.rmtree(place, ignore_errors=True)


def ids(rows: Sequence[tuple[Any, ...]]) -> list[int]:
    return sorted(number for (number,) in rows)
