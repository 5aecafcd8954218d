"""Every decoder against mutated bytes, each in a process that may die; and earlier findings."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.drivers.daemon import ROOT
from tests.fuzz.child import noted
from tests.fuzz.targets import TARGETS

REGRESSIONS = Path(__file__).parent / "regressions"
EXAMPLES = 150
WITHIN_S = 120.0


GROUPS = {
    "log": ["segment", "segment-sealed", "log-folder"],
    "records": ["operation", "schema-record", "origins-record"],
    "manifest": [
        "changelog",
        "changelog-sealed",
        "commit",
        "snapshot",
        "snapshot-sealed",
        "manifest-folder",
    ],
    "requests": ["ticket", "descriptor", "metadata", "body"],
    "columns": ["batches", "arrow-schema", "parquet"],
}
"""Targets that share a process: starting one takes longer than most of its work."""


def run(targets: list[str], folder: Path, *arguments: object) -> dict[str, dict[str, int]]:
    """Return the child's summary; fail with its last input on a finding."""
    note = folder / "note"
    command = [sys.executable, "-m", "tests.fuzz.child", *targets, "--note", str(note)]
    done = subprocess.run(
        [*command, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    if done.returncode:
        pytest.fail(f"exit code {done.returncode}\n{done.stderr[-3000:]}\n{noted(note)[:2000]!r}")
    found: dict[str, dict[str, int]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("targets", GROUPS.values(), ids=GROUPS.keys())
def test_decoders_take_mutated_bytes_or_refuse_them_by_name(
    targets: list[str], tmp_path: Path
) -> None:
    done = run(targets, tmp_path, "--examples", EXAMPLES)
    for target in targets:
        assert done[target]["inputs"] >= EXAMPLES // 2
        assert done[target]["understood"], f"no input of {target} got anywhere: wrong seeds?"


def test_every_target_is_in_a_group() -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(TARGETS)


@pytest.mark.parametrize("target", sorted(path.name for path in REGRESSIONS.iterdir()))
def test_what_was_once_found_is_answered_as_it_should_be(target: str, tmp_path: Path) -> None:
    inputs = sorted((REGRESSIONS / target).iterdir())
    arguments = [argument for path in inputs for argument in ("--input", path)]
    assert run([target], tmp_path, *arguments)[target]["inputs"] == len(inputs)
