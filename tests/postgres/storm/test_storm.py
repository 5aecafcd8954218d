"""A short storm, and the reproduction of steps by a seed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres.cluster import Cluster, serve_or_skip
from tests.postgres.storm.campaign import Plan, Storm
from tests.postgres.storm.model import Catalog
from tests.postgres.storm.transactions import draw

SECONDS = float(os.environ.get("INGESTER_TEST_STORM_S", "10"))
KILLS = int(os.environ.get("INGESTER_TEST_STORM_KILLS", "3"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with serve_or_skip(tmp_path_factory.mktemp("postgres")) as running:
        yield running


@pytest.mark.parametrize("number", [0])
def test_a_seed_draws_the_same_steps_again(number: int) -> None:
    one, other = Catalog(number, 5), Catalog(number, 5)
    steps = [draw(one).statements for _ in range(150)]
    assert steps == [draw(other).statements for _ in range(150)]
    text = "\n".join(statement for step in steps for statement in step)
    for what in ("ATTACH", "RENAME", "TRUNCATE", "SAVEPOINT", "USING", "DEFERRABLE", "SET SCHEMA"):
        assert what in text


def test_no_copy_is_silently_different_after_a_storm(cluster: Cluster, tmp_path: Path) -> None:
    plan = Plan(SECONDS, seed=1, kills=KILLS, sessions=2, round_s=SECONDS)
    with Storm(plan, cluster, tmp_path, print) as storm:
        report = storm.run()
    # Most steps must succeed, because failing steps test nothing.
    assert report.outcomes["done"] > 0.8 * report.outcomes.total()
    assert sum(report.kills.values()) == KILLS
    [(_, verdict)] = report.rounds
    assert len(verdict.equal) > 5
