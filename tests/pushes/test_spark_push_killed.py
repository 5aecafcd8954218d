"""A driver ends in the middle of a push; its successor continues, with each row once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import ingester.pushes.spark.run
from ingester.pushes.spark import push
from ingester.pushes.states import Status
from persist.manifest import Manifest
from persist.store import open_store
from tests.pushes.spark_job import COLUMNS, FILES, ROWS, TABLE
from tests.pushes.spark_pushes import (
    Died,
    assert_same_files,
    assert_same_rows,
    dying_at,
    frame_of,
    plain_rows,
    pushes_of,
    regions_in,
    state_of,
)

pytestmark = pytest.mark.spark

ROOT = Path(__file__).resolve().parents[2]


def died(*_: object) -> None:
    """End the driver in place of the patched call."""
    raise Died


def files_there(folder: Path) -> set[str]:
    """Return all files of the pushed version in any region, listed or not."""
    return {path.name for path in folder.glob(FILES)}


def test_a_push_goes_on_from_wherever_its_driver_has_ended(
    spark: SparkSession, tmp_path: Path
) -> None:
    config = regions_in(tmp_path, order="in_order")
    frame = spark.range(0, 600, 1, 3).selectExpr("id", "concat('h', id % 7) as host")

    def push_until(what: str) -> None:
        with pytest.raises(Died):
            push(frame, *TABLE, config=config, push_id="p", progress=dying_at(what))

    for what in ("push began", "a WRITING", "c WRITING"):
        push_until(what)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("decide", "commit_everywhere"):
            patch.setattr(ingester.pushes.spark.run, name, died)
            with pytest.raises(Died):
                push(frame, *TABLE, config=config, push_id="p")
            patch.undo()
    written = files_there(tmp_path)
    for what in ("a COMPLETED", "a SERVING", "b SERVING"):
        push_until(what)
    assert state_of(config.region("b"), TABLE).table_version == 2
    result = push(frame, *TABLE, config=config, push_id="p")
    assert (result.live, result.rows) == (True, 600)
    assert files_there(tmp_path) == written, "the rows were not written again"
    assert_same_files(config, TABLE)
    for region in config.regions:
        assert_same_rows(frame_of(spark, region, TABLE), frame)
    again = push(frame, *TABLE, config=config, push_id="p")
    assert again == result


@pytest.mark.slow
def test_a_killed_driver_whose_tasks_failed_at_first_is_followed_by_the_job_of_that_name(
    tmp_path: Path,
) -> None:
    hook = "tests.pushes.spark_pushes:KillOnce"
    once = tmp_path / "killed"
    config = regions_in(tmp_path, order="in_order", classes=[hook], config={"kill.once": str(once)})
    file = tmp_path / "push.toml"
    file.write_text(
        'pushes.order = "in_order"\n'
        f'hooks = {{ classes = ["{hook}"], config = {{ "kill.once" = "{once}" }} }}\n'
        + "".join(f'regions.{r.name}.url = "{r.url}"\n' for r in config.regions)
    )
    environment = {**os.environ, "PYSPARK_SUBMIT_ARGS": "--master local[2] pyspark-shell"}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    first = run("tests.pushes.spark_job", str(file), "p", str(tmp_path))
    assert first.returncode == -signal.SIGKILL, first.stderr
    # The job's report may lag slightly behind its record.
    kept = pushes_of(config).newest("p").record
    assert [each.status.value for each in kept.regions[:2]] == ["SERVING", "WAITING"]
    listed = set(assert_listed(config.regions[0].url))
    assert len(files_there(tmp_path)) > len(listed), "first attempts have left files"
    [version] = {state_of(config.region(name), TABLE).table_version for name in ("b", "c")}
    assert version == 1

    query = f"select {', '.join(COLUMNS)} from range({ROWS})"
    job = ("ingester.spark.push", "--config", str(file), *TABLE, "--push-id", "p", "--json")
    second = run(*job, "--sql", query)
    assert second.returncode == 0, second.stderr
    result = json.loads(second.stdout)
    assert (result["status"], result["rows"], len(result["regions"])) == ("SERVING", ROWS, 3)
    assert result["files"] == len(listed)
    asked = {each["method"]: each["outcomes"] for each in result["hooks"]}
    assert asked["post_version_swap"] == {"proceed": 2}, "what a was told is kept"
    assert f"hook {hook}: post_version_swap: 2 calls (2 proceed)" in second.stderr
    assert "b: SERVING" in second.stderr
    assert {Path(path).name for path in assert_same_files(config, TABLE)} == listed
    assert sorted(plain_rows(config.regions[2], TABLE).column("id").to_pylist()) == [*range(ROWS)]
    assert pushes_of(config).newest("p").record.status is Status.SERVING


def assert_listed(url: str) -> list[str]:
    """Return the names of the files that a region's pushed version lists."""
    state = Manifest(open_store(url), *TABLE, 2).load()
    assert state.rows == ROWS
    return [path.rpartition("/")[2] for path in state.files]
