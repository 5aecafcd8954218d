"""Permitted imports between modules: `.importlinter` passes and lists every pure module."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).resolve().parents[2]
EXECUTORS = "persist.manifest, persist.store, persist.parquet.encode, persist.table, ingester.spark"


def lint(config: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    exit_code = lint_imports(config_filename=str(config), no_cache=True, no_logo=True)
    # import-linter configures logging and disables the existing loggers.
    for name in list(logging.root.manager.loggerDict):
        logging.getLogger(name).disabled = False
    return exit_code, capsys.readouterr().out


def test_no_module_imports_what_its_layer_forbids(capsys: pytest.CaptureFixture[str]) -> None:
    exit_code, report = lint(ROOT / ".importlinter", capsys)
    assert exit_code == 0, report


def test_a_module_on_no_line_fails_the_layers(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = (ROOT / ".importlinter").read_text()
    # `settings` stands for a module that was not assigned to a layer.
    assert "entry | settings" in config
    (tmp_path / "config").write_text(config.replace("entry | settings", "entry"))
    exit_code, report = lint(tmp_path / "config", capsys)
    assert exit_code == 1
    assert "settings" in report.split("Broken contracts")[-1]


def test_a_pure_module_that_reads_the_clock_fails(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = (ROOT / ".importlinter").read_text()
    # `wal.segment` stands for a rule that should get the time as an argument.
    (tmp_path / "config").write_text(config.replace("    wal.scan\n", "    wal.segment\n"))
    exit_code, report = lint(tmp_path / "config", capsys)
    assert exit_code == 1
    assert "wal.segment is not allowed to import time" in report


def test_what_spark_executors_import_loads_no_trio() -> None:
    # import-linter checks import statements; this test checks the loaded modules.
    code = f"import sys, {EXECUTORS}; print(sorted({{'trio', 'wal'}} & set(sys.modules)))"
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "[]"
