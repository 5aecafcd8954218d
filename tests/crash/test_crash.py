"""The campaign's short form: a few kills of each kind, and everything read back at the end.

The long form is ``make crash``. A failing run prints its seed (``INGESTER_TEST_CRASH_SEED``
repeats it) and leaves its folder, with the daemon's log and the ledgers.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from random import Random

import pytest

from tests.crash.report import Extent
from tests.crash.run import run


@pytest.mark.slow
@pytest.mark.spark
def test_kill_9_at_any_moment_loses_and_doubles_nothing(tmp_path: Path) -> None:
    seed = int(os.environ.get("INGESTER_TEST_CRASH_SEED") or secrets.randbelow(1_000_000))
    # Lives on S3 take longer and are left to the long form.
    world = Random(seed).choice(("disk", "cleaned"))
    extent = Extent(seed, kills=6, seconds=0.0, worlds=(world,), longest_s=1.0)
    report = run(tmp_path / "crash", extent)
    assert not report.findings.faults, f"seed {seed}, folder {tmp_path}:\n" + "\n".join(
        report.findings.faults
    )
    assert report.killed >= 6
    assert report.acknowledged_rows > 500
    assert report.read_at_end["spark"] >= report.acknowledged_rows
    assert len(report.history) == 1
