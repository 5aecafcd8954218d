"""``ingester demo`` as a process: it succeeds, reports, fails loudly and cleans up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import ingester.demo.source
from ingester.demo import run, run_demo
from ingester.demo.source import flights_file, read_flights
from ingester.demo.totals import totals_of

ROWS = 6_000
COMMAND = [sys.executable, "-m", "ingester", "demo", "--rows", str(ROWS)]


def environment(folder: Path) -> dict[str, str]:
    """Return an environment with ``folder`` as TMPDIR and a store that the demo must ignore."""
    folder.mkdir()
    return {**os.environ, "TMPDIR": str(folder), "INGESTER_STORE": "nowhere://store"}


def processes_using(folder: Path) -> list[str]:
    """Return the command lines of processes that name ``folder``."""
    lines = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # the process has just ended
        if str(folder) in line:
            lines.append(line)
    return lines


def source_totals() -> dict[str, int]:
    flights = read_flights(flights_file(), ROWS)
    return totals_of(flights, flights.schema)


@pytest.mark.spark
@pytest.mark.slow
def test_the_demo_ends_well_and_leaves_nothing_behind(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    done = subprocess.run(
        [*COMMAND, "--json"],
        env=environment(temporary),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["disagreements"] == []
    assert result["source"] == source_totals()
    for table in result["tables"]:
        assert table["rows_acknowledged"] == table["rows_in_files"] == ROWS
        assert table["rows_in_buffer"] == 0
        assert table["spark"] == result["source"]
        assert 0 < table["acknowledged_p50_ms"] <= table["acknowledged_p99_ms"]
    assert {table["partition_by"] for table in result["tables"]} == {
        "month(time_hour)",
        "identity(carrier)",
    }
    for said in ("query after writing", "rows in buffer", "sum(distance)", "totals over every col"):
        assert said in done.stderr
    assert list(temporary.glob("ingester-demo-*")) == []
    assert processes_using(temporary) == []


def test_a_number_that_disagrees_fails_loudly_and_keeps_the_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def off_by_one(_url: str, _schema: pa.Schema) -> dict[str, dict[str, int]]:
        right = source_totals()
        wrong = right | {"sum(distance)": right["sum(distance)"] + 1}
        return {"flights_by_month": right, "flights_by_carrier": wrong}

    monkeypatch.setattr(run, "totals_by_spark", off_by_one)
    folder = tmp_path / "data"
    assert run_demo(rows=ROWS, data_dir=folder) == 1
    said = capsys.readouterr()
    right = source_totals()["sum(distance)"]
    assert (
        f"DISAGREEMENT: flights_by_carrier, Spark: has sum(distance) = {right + 1}; "
        f"the source has {right} (+1)" in said.out
    )
    assert "All " not in said.out
    assert f"FAILED: numbers disagree; data kept in {folder}" in said.err
    assert list(folder.glob("store/nyc/flights_by_month/v1/data/*/*.parquet"))


def test_ctrl_c_ends_the_daemon_and_removes_the_folder(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    demo = subprocess.Popen(
        COMMAND,
        env=environment(temporary),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert demo.stdout is not None
    for line in demo.stdout:
        if line.startswith("daemon:"):
            break
    assert len(processes_using(temporary)) == 1
    demo.send_signal(signal.SIGINT)
    _, stderr = demo.communicate(timeout=60)
    assert demo.returncode == 130, stderr
    assert stderr.splitlines()[-1] == "ingester demo: interrupted"
    assert list(temporary.glob("ingester-demo-*")) == []
    assert processes_using(temporary) == []


def test_missing_parts_are_named_with_what_brings_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setattr(ingester.demo.source, "PACKAGE", "no_such_flights")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert run_demo() == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("ingester demo: ") for line in lines)
    assert "no_such_flights: pip install '.[demo]'" in lines[0]
    assert "pyspark" in lines[1]
    assert f"JAVA_HOME={tmp_path} has no bin/java" in lines[2]
    assert "openjdk-17-jre-headless" in lines[2]


def test_an_old_java_is_named_with_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert run_demo() == 1
    assert f"{program} is Java 11" in capsys.readouterr().err


def test_a_folder_with_something_in_it_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "something").touch()
    assert run_demo(data_dir=tmp_path) == 1
    assert f"{tmp_path} is not empty" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["something"]
