"""What the replicator's errors advise is done as they say, and then it works.

``tests/house/test_remedies.py`` finds advice that no test follows.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from ingester.client import Client
from tests.drivers.daemon import Daemon
from tests.drivers.syncing import Source
from tests.drivers.waiting import until
from tests.drivers.warm import warm
from tests.postgres.cluster import Cluster, serve_or_skip
from tests.postgres.replicating import replicating

PATIENCE_S = 60.0
Ingester = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with serve_or_skip(tmp_path_factory.mktemp("postgres")) as running:
        running.run(
            "CREATE TABLE items (id int PRIMARY KEY, v text)",
            "CREATE TABLE days (id int PRIMARY KEY, d date)",
            "INSERT INTO items VALUES (1, 'a')",
            "SELECT pg_create_physical_replication_slot('physical')",
        )
        yield running


@pytest.fixture
def ingester(shared: Daemon) -> Ingester:
    """Run a command that is expected to exit."""

    def run(*command: str) -> subprocess.CompletedProcess[bytes]:
        return warm().run([*command, "--endpoint", shared.flight], {}, Path("/"))

    return run


@pytest.mark.parametrize(
    ("refused", "advice", "helped"),
    [
        (("--tables", "item"), "correct --tables", ()),
        (("--rename", "public.items.w=x"), "correct --rename", ("--rename", "public.items.v=x")),
        (("--publication", "p" * 64), "choose another --publication", ("--publication", "p")),
        (("--slot", "My-Slot"), "choose another --slot", ("--slot", "my_slot")),
        (("--slot", "physical"), "choose another --slot", ("--slot", "other")),
    ],
)
def test_a_check_succeeds_with_the_option_that_it_advises(
    cluster: Cluster,
    ingester: Ingester,
    refused: tuple[str, ...],
    advice: str,
    helped: tuple[str, ...],
) -> None:
    check = ("replicate", "postgres", cluster.dsn, "checked", "--check", "--tables", "items")
    done = ingester(*check, *refused)
    assert done.returncode == 1, done.stdout
    assert advice in done.stdout.decode() + done.stderr.decode()
    done = ingester(*check, *helped)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("copied", [False, True], ids=["in the copy", "in the stream"])
def test_a_value_that_no_type_here_has_is_replaced_as_the_policy_says(
    copied: bool, cluster: Cluster, shared: Daemon, tmp_path: Path
) -> None:
    name = f"days{copied:d}"
    odd = "INSERT INTO days VALUES (2, 'infinity')"
    cluster.run("DELETE FROM days", "INSERT INTO days VALUES (1, '2026-11-28')")
    options = ("--tables", "days", "--slot", name, "--publication", name)
    if not copied:
        cluster.run(odd)
    with (
        replicating(cluster.dsn, shared.flight, name, tmp_path, *options) as replicator,
        Client(shared.flight) as client,
    ):
        if copied:
            until(lambda: " rows of " in replicator.said, "the copy", PATIENCE_S)
            cluster.run(odd)
        until(lambda: "is set aside" in replicator.said, "the value", PATIENCE_S)
        replicator.stop()
        replicator.start("--values", "public.days.d=null")

        def found() -> list[object]:
            if " rows of " not in replicator.said:
                return []
            days: list[object] = client.query(name, "days").sort_by("id")["d"].to_pylist()
            return days[1:]

        until(lambda: found() == [None], "the copy with the policy", PATIENCE_S)
        replicator.stop()


def test_a_difference_is_mended_by_the_copy_that_the_comparison_advises(
    cluster: Cluster, shared: Daemon, ingester: Ingester, tmp_path: Path
) -> None:
    options = ("--tables", "items", "--slot", "differs", "--publication", "differs")
    verify = ("replicate", "verify", cluster.dsn, "differs")
    with (
        replicating(cluster.dsn, shared.flight, "differs", tmp_path, *options) as replicator,
        Client(shared.flight) as client,
    ):
        until(lambda: " rows of " in replicator.said, "the copy", PATIENCE_S)
        client.delete("differs", "items", {"id": pa.array([1], pa.int32())})
        done = ingester(*verify)
        assert done.returncode == 1, done.stdout
        assert "run the replicator with --resync items" in done.stdout.decode()
        replicator.stop()
        replicator.start("--resync", "items")
        until(lambda: replicator.said.count(" rows of ") == 2, "another copy", PATIENCE_S)
        assert ingester(*verify).returncode == 0
        replicator.stop()


def test_a_comparison_takes_the_origin_that_it_lists(
    cluster: Cluster, shared: Daemon, ingester: Ingester, tmp_path: Path
) -> None:
    cluster.run("CREATE TABLE other (id int PRIMARY KEY)", "INSERT INTO other VALUES (1)")
    for table in ("items", "other"):
        name = f"two_{table}"
        options = ["--tables", table, "--slot", name, "--publication", name]
        options += ["--origin", f"of-{table}"]
        folder = tmp_path / table
        folder.mkdir()
        with replicating(cluster.dsn, shared.flight, "two", folder, *options) as replicator:
            until(lambda: " rows of " in replicator.said, "the copy", PATIENCE_S)
            replicator.stop()
    verify = ("replicate", "verify", cluster.dsn, "two")
    done = ingester(*verify)
    assert "set --origin to one of of-items, of-other" in done.stderr.decode()
    assert ingester(*verify, "--origin", "of-items").returncode == 0


def test_a_replicator_whose_origin_another_one_uses_continues_under_its_own(
    cluster: Cluster, shared: Daemon, tmp_path: Path
) -> None:
    cluster.run("CREATE TABLE used (id bigint PRIMARY KEY, s text)", "INSERT INTO used VALUES (1)")
    options = ("--tables", "used", "--slot", "used", "--publication", "used")
    with (
        replicating(cluster.dsn, shared.flight, "used", tmp_path, *options) as replicator,
        Client(shared.flight) as client,
        fl.connect(shared.flight) as other,
    ):

        def has(*ids: int) -> bool:
            return sorted(client.query("used", "used")["id"].to_pylist()) == [*ids]

        until(lambda: " rows of " in replicator.said, "the copy", PATIENCE_S)
        cluster.run("INSERT INTO used VALUES (2)")
        until(lambda: has(1, 2), "the row", PATIENCE_S)
        [origin] = {each.origin for each in client.origins() if each.origin.endswith("-used")}
        Source(other, "used", origin).send("used", [(None, 9, {"s": "x"})], sequence=1 << 60)
        cluster.run("INSERT INTO used VALUES (3)")
        assert replicator.ended() == 1
        replicator.kill()
        assert "set another --origin" in replicator.said
        replicator.start("--origin", "mine")
        until(lambda: has(1, 2, 3) or has(1, 2, 3, 9), "the row", PATIENCE_S)
        replicator.stop()
