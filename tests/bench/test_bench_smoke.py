"""The benchmark program runs to its end and writes every table; its numbers mean nothing here."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from tests.bench.__main__ import main
from tests.bench.report import Table, Target
from tests.bench.running import TABLES
from tests.bench.samples import Samples


@pytest.mark.slow
def test_every_table_is_measured_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--form", "smoke", "--out", str(tmp_path)]) == 0
    (path,) = tmp_path.iterdir()  # The servers' data is gone.
    tables = json.loads(path.read_text())["tables"]
    assert {table["name"].partition("-")[0] for table in tables} == TABLES.keys()
    cells = [cell for table in tables for row in table["rows"] for cell in row.values()]
    values = [value for cell in cells if isinstance(cell, dict) for value in cell["values"]]
    assert len(values) > 50
    assert all(math.isfinite(value) and value >= 0 for value in values)
    shown = capsys.readouterr().out
    assert all(table["title"] in shown for table in tables)
    assert "replay, rows/s of a 5-column table" in shown


def test_no_child_outlives_its_with(tmp_path: Path) -> None:
    assert main(["--form", "smoke", "--out", str(tmp_path), "limits"]) == 0
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children]
    assert not [command for command in commands if b"spawn_main" in command]


def test_a_ratio_is_taken_within_each_repeat() -> None:
    ratio = Samples((10.0, 40.0, 30.0), "/s").over(Samples((20.0, 80.0, 90.0), "/s"))
    assert ratio.values == pytest.approx((0.5, 0.5, 1 / 3))
    assert ratio.median == 0.5


@pytest.mark.parametrize(
    ("wanted", "below", "met"),
    [(0.5, False, True), (0.51, False, False), (0.51, True, True), (0.5, True, False)],
)
def test_a_target_is_judged_by_the_median(wanted: float, below: bool, met: bool) -> None:
    assert Target("t", wanted, Samples((0.1, 0.5, 9.0), "x"), below=below).met is met


def test_a_cell_of_no_column_is_refused() -> None:
    table = Table("t", "T", ["rows/s"])
    table.add(rows__s=3)
    with pytest.raises(ValueError, match="lost"):
        table.add(lost=1)
    assert "rows/s" in table.text()
