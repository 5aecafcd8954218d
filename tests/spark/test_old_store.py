"""A store and a log of an earlier release, read as DataFrames."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ingester.spark import compact, read_table
from tests.drivers.daemon import Daemon
from tests.drivers.wire import Json, Table
from tests.upgrades import asking
from tests.upgrades.fixture import Fixture, fixtures
from tests.upgrades.written import COPY, EVENTS, KEYED, PLAIN

pytestmark = pytest.mark.spark

COLUMNS = {PLAIN: "i", EVENTS: "i", KEYED: "k", (COPY, "a"): "id", (COPY, "b"): "id"}


@pytest.fixture(scope="module", params=fixtures(), ids=lambda each: str(each.release))
def release(request: pytest.FixtureRequest) -> Fixture:
    """The data of one release."""
    found: Fixture = request.param
    return found


@pytest.fixture(scope="module")
def answers(release: Fixture) -> Json:
    """The answers of that release about its own data."""
    found: Json = release.answers()["daemon"]["found"]
    return found


@pytest.fixture(scope="module")
def old(release: Fixture, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon on a copy of the old data."""
    data = release.unpacked(tmp_path_factory.mktemp("old"))
    with Daemon.start(data, **asking.SETTINGS) as daemon:
        yield daemon


def expected(answers: Json, table: Table) -> list[int]:
    answer = answers["/".join(table)]["all"]
    names = list(answer["schema"])
    return sorted(row[names.index(COLUMNS[table])] for row in answer["rows"])


@pytest.mark.parametrize("table", COLUMNS, ids="/".join)
def test_files_and_tail_have_the_rows_that_the_old_version_answered(
    spark: SparkSession, old: Daemon, answers: Json, table: Table
) -> None:
    url = f"file://{old.data_dir}/store"
    frame = read_table(spark, url, *table, endpoint=old.flight)
    assert sorted(row[0] for row in frame.select(COLUMNS[table]).collect()) == expected(
        answers, table
    )


def test_old_files_of_two_specs_become_files_of_one(
    spark: SparkSession, release: Fixture, tmp_path: Path
) -> None:
    url = f"file://{release.unpacked(tmp_path)}/store"
    before = sorted(map(tuple, read_table(spark, url, *EVENTS).collect()))
    report = compact(spark, url, *EVENTS)
    assert report.refused is None
    assert sorted(map(tuple, read_table(spark, url, *EVENTS).collect())) == before
