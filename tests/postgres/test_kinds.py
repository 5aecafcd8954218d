"""Reported faults of other replicators, on a real server: copied correctly, or set aside.

All stories run in parallel at one server and one daemon, with two replicators: one creates its
publication, the other uses an existing one as a role with few rights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg2
import pyarrow as pa
import pyarrow.flight as fl
import pytest

from ingester.client import Client
from tests.drivers.daemon import Daemon
from tests.drivers.warm import warm
from tests.postgres.cluster import Cluster, serve_or_skip
from tests.postgres.comparing import compare, source_tables
from tests.postgres.kinds import PUBLICATION, PUBLISHED, PUBLISHES_LESS, ROOTS, SCHEMAS, STORIES
from tests.postgres.replicating import Replicating, replicating, steady_daemon
from tests.postgres.stories import Story, Told, tell

RESIDENT_KB = 450_000
"""The memory limit of a replicator, including all imports."""


class World:
    """The source, the daemon, both replicators, and the outcome of the stories."""

    def __init__(
        self, cluster: Cluster, daemon: Daemon, own: Replicating, chosen: Replicating
    ) -> None:
        self.cluster, self.daemon, self.own, self.chosen = cluster, daemon, own, chosen
        with ThreadPoolExecutor(2) as threads:
            ours = threads.submit(self._tell, "own", STORIES, own)
            roots = threads.submit(self._tell, "chosen", ROOTS, chosen)
            self.told, roots_told = ours.result(), roots.result()
        self.told.wrong.update(roots_told.wrong)
        self.told.wrong.update(self._tell("chosen", [PUBLISHES_LESS], None).wrong)

    def _tell(self, namespace: str, stories: list[Story], replicator: Replicating | None) -> Told:
        def between(number: int) -> None:
            if number == 2 and replicator is not None:
                replicator.kill()
                replicator.start()

        told = tell(self.cluster, lambda: self.daemon, namespace, stories, between)
        if replicator is not None:
            code = replicator.process.poll()
            assert code is None, f"the replicator ended: {code}\n{replicator.said[-4000:]}"
        return told


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("kinds")
    with serve_or_skip(folder) as cluster:
        if int(cluster.run("SHOW server_version_num")[0][0]) < 150_000:
            pytest.skip("this PostgreSQL has neither row filters nor lists of columns")
        cluster.run(*SCHEMAS, *PUBLISHED)
        limited = cluster.dsn.replace("user=bench", "user=limited")
        options = ("--publication", PUBLICATION, "--slot", "chosen")
        with (
            steady_daemon(folder / "d", replication__max_lag="1s") as daemon,
            replicating(cluster.dsn, daemon.flight, "own", folder) as own,
            replicating(limited, daemon.flight, "chosen", folder, *options) as chosen,
        ):
            yield World(cluster, daemon, own, chosen)


@pytest.mark.parametrize("name", [story.name for story in (*STORIES, *ROOTS, PUBLISHES_LESS)])
def test_a_story_ends_well(world: World, name: str) -> None:
    assert world.told.wrong.get(name) is None


def test_the_products_own_comparison_says_the_same(world: World) -> None:
    command = ["replicate", "verify", world.cluster.dsn, "own", "--json"]
    command += ["--endpoint", world.daemon.flight]
    found = warm().run([*command, "--ignore-set-aside"], {}, Path("/"))
    assert found.returncode == 0, (found.stdout + found.stderr).decode()
    # Both comparisons find a row that was changed in the copy.
    with Client(world.daemon.flight) as client:
        client.write("own", "widened", pa.record_batch({"id": pa.array([2], pa.int32()), "n": [9]}))
    connection = psycopg2.connect(world.cluster.dsn)
    try:
        [table] = [each for each in source_tables(connection) if each.name == "widened"]
        with fl.connect(world.daemon.flight) as wire:
            difference = compare(connection, wire, "own", table)
    finally:
        connection.close()
    assert difference is not None
    assert (difference.missing, difference.extra) == ([(2, 2)], [(2, 9)])
    found = warm().run([*command, "widened"], {}, Path("/"))
    assert found.returncode == 1, found.stdout + found.stderr
    [told] = json.loads(found.stdout)["tables"]
    assert (told["table"], told["verdict"], told["differing"]) == ("widened", "differs", 1)


def test_replicators_stay_small(world: World) -> None:
    for replicator in (world.own, world.chosen):
        if replicator.process.poll() is None:
            status = Path(f"/proc/{replicator.process.pid}/status").read_text()
            [most] = [line for line in status.splitlines() if line.startswith("VmHWM")]
            assert int(most.split()[1]) < RESIDENT_KB
