"""Refusals on the command line, from a small daemon that refuses on demand."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import run_command
from tests.client.small_daemon import SmallDaemon, unavailable


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallDaemon]:
    monkeypatch.setattr(sys, "tracebacklimit", 0, raising=False)
    with SmallDaemon() as running:
        yield running


def test_a_transient_refusal_is_exit_code_4_and_reports_the_accepted_rows(
    daemon: SmallDaemon, tmp_path: Path
) -> None:
    def refuse(n: int) -> None:
        if n > 2:
            raise unavailable("memory")

    daemon.before = refuse
    (tmp_path / "a.csv").write_text("v\n" + "1\n" * 50)
    failed = run_command(
        "write", "n", "t", "a.csv", "--batch-rows", 10, "--retry-for", "0s", "--json",
        cwd=tmp_path, endpoint=daemon.endpoint,
    )  # fmt: skip
    advice, refusal = failed.stderr.decode().splitlines()
    assert (failed.returncode, refusal) == (4, "ingester: refused: memory")
    assert advice.startswith(
        "ingester: 20 rows of a.csv are in; continue from row 21 with:"
        " ingester write n t a.csv --skip-rows 20 "
    )
    assert json.loads(failed.stdout)["rows"] == 20


def test_a_short_refusal_is_retried_silently(daemon: SmallDaemon, tmp_path: Path) -> None:
    def refuse(n: int) -> None:
        if n == 2:
            raise unavailable("memory", retry_after_s=0.01)

    daemon.before = refuse
    (tmp_path / "a.csv").write_text("v\n" + "1\n" * 50)
    done = run_command(
        "write", "n", "t", "a.csv", "--batch-rows", 10, cwd=tmp_path, endpoint=daemon.endpoint
    )
    assert done.returncode == 0, done.stderr
    assert daemon.table("n", "t").num_rows == 50


def test_an_interrupted_answer_leaves_no_file(daemon: SmallDaemon, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("v\n1\n")
    run_command("write", "n", "t", "a.csv", cwd=tmp_path, endpoint=daemon.endpoint)
    daemon.rows["n", "t"].append(daemon.rows["n", "t"][0].rename_columns(["w"]))  # cannot be sent
    before = sorted(path.name for path in tmp_path.iterdir())
    failed = run_command(
        "query", "n", "t", "--output", "o.parquet", cwd=tmp_path, endpoint=daemon.endpoint
    )
    assert failed.returncode in (1, 3)
    assert b"Traceback" not in failed.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_column_name_with_a_comma_is_quoted(daemon: SmallDaemon, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('v,"a,b"\n1,2\n')
    run_command("write", "n", "t", "a.csv", cwd=tmp_path, endpoint=daemon.endpoint)
    for given, asked in (('v,"a,b"', ["v", "a,b"]), ('"a,b", v', ["a,b", "v"]), ("v", ["v"])):
        done = run_command(
            "query", "n", "t", "--columns", given, cwd=tmp_path, endpoint=daemon.endpoint
        )
        assert done.returncode == 0, done.stderr
        assert daemon.tickets[-1]["columns"] == asked
    wrong = run_command(
        "query", "n", "t", "--columns", 'v,"a', cwd=tmp_path, endpoint=daemon.endpoint
    )
    assert wrong.returncode == 2, wrong.stderr
