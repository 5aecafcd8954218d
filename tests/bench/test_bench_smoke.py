"""The benchmark program completes and writes every table; its numbers mean nothing here."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
from pathlib import Path

import pytest

from tests.bench.children import Child
from tests.bench.command import main
from tests.bench.effort import FORMS, Bench
from tests.bench.report import Table, Target
from tests.bench.results import Run
from tests.bench.running import TABLES
from tests.bench.samples import Samples
from tests.bench.tables import growth


@pytest.fixture
def forked_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the program's children with all modules imported; imports take most of their time."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.bench.tables"])
    monkeypatch.setattr(Child, "context", context)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_children")
def test_every_table_is_measured_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Tables that start many processes have their own tests or run only by hand.
    names = TABLES.keys() - {"growth", "postgres_load", "spark", "sustained", "durability"}
    assert main(["--form", "smoke", "--out", str(tmp_path), *names]) == 0
    # The servers' data is deleted.
    [path] = (path for path in tmp_path.iterdir() if path.suffix == ".json")
    [pictures] = (path for path in tmp_path.iterdir() if path.is_dir())
    tables = json.loads(path.read_text())["tables"]
    assert {table["name"].partition("-")[0] for table in tables} == names
    cells = [cell for table in tables for row in table["rows"] for cell in row.values()]
    values = [value for cell in cells if isinstance(cell, dict) for value in cell["values"]]
    assert len(values) > 50
    assert all(math.isfinite(value) and value >= 0 for value in values)
    shown = capsys.readouterr().out
    assert all(table["title"] in shown for table in tables)
    assert "replay of 20,000 rows, rows/s" in shown
    drawn = list(pictures.iterdir())
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in drawn)
    # A peer's promise is not a number.
    assert {p.stem for p in drawn} == {t["name"] for t in tables} - {"peers-promises"}
    assert main(["--show", str(path)]) == 0
    again = capsys.readouterr().out
    assert all(table["title"] in again for table in tables)


def test_the_growth_of_a_cost_is_shown_with_its_exponent(tmp_path: Path) -> None:
    bench = Bench(FORMS["smoke"], tmp_path / "work", tmp_path, lambda text: None)
    dimension = growth.DIMENSIONS[4]
    assert dimension.what == "origins"
    found = growth.measure(bench, dimension)
    assert [row["cost"] for row in found.rows][-1] == "start after kill -9"
    for row in found.rows:
        one, three = row["1x"], row["3x"]
        assert isinstance(one, Samples)
        assert isinstance(three, Samples)
        slope = math.log(three.median / one.median) / math.log(3)
        assert float(str(row["exponent"])) == pytest.approx(slope, abs=0.01)


def test_runs_under_different_conditions_are_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = []
    for hour in ("10", "11"):
        table = Table("t", "T", ["rows/s"], targets=[Target("t", 1.0, Samples((2.0,), "x"))])
        table.add(rows__s=Samples((1.0, 2.0), "/s"))
        run = Run("quick", 1.0, {}, {"at": f"2026-11-21T{hour}:00:00Z"}, [table])
        runs.append(str(run.write(tmp_path)))
    assert main(["--show", runs[0], runs[0]]) == 0
    assert "met" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--show", *runs])
    said = capsys.readouterr()
    assert "made apart" in said.err
    assert "T10:00:00Z" in said.err
    assert not said.out


def test_no_child_outlives_its_with_block(tmp_path: Path) -> None:
    assert main(["--form", "smoke", "--out", str(tmp_path), "limits"]) == 0
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children]
    assert not [command for command in commands if b"spawn_main" in command]


def test_a_ratio_is_computed_within_each_repeat() -> None:
    ratio = Samples((10.0, 40.0, 30.0), "/s").over(Samples((20.0, 80.0, 90.0), "/s"))
    assert ratio.values == pytest.approx((0.5, 0.5, 1 / 3))
    assert ratio.median == 0.5


@pytest.mark.parametrize(
    ("wanted", "below", "met"),
    [(0.5, False, True), (0.51, False, False), (0.51, True, True), (0.5, True, False)],
)
def test_a_target_is_judged_by_the_median(wanted: float, below: bool, met: bool) -> None:
    assert Target("t", wanted, Samples((0.1, 0.5, 9.0), "x"), below=below).met is met


def test_a_cell_without_a_column_is_refused() -> None:
    table = Table("t", "T", ["rows/s"])
    table.add(rows__s=3)
    with pytest.raises(ValueError, match="lost"):
        table.add(lost=1)
    assert "rows/s" in table.text()
