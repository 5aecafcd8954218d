"""The campaign's short form: a few losses on local files, without Spark.

The long form is ``make lost-machine``. A failing run prints its seed
(``INGESTER_TEST_LOST_MACHINE_SEED`` repeats it) and leaves its folder.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from tests.lost_machine.report import Extent
from tests.lost_machine.run import run


@pytest.mark.slow
def test_every_row_acknowledged_at_store_survives_the_loss_of_its_machine(tmp_path: Path) -> None:
    seed = int(os.environ.get("INGESTER_TEST_LOST_MACHINE_SEED") or secrets.randbelow(1_000_000))
    extent = Extent(seed, losses=5, longest_s=0.8, spark=False, patient=False)
    report = run(tmp_path / "lost", extent, ("file",))
    assert not report.findings.faults, f"seed {seed}, folder {tmp_path}:\n" + "\n".join(
        report.findings.faults
    )
    assert report.lost >= 5
    assert report.losses["paused, restarted"] + report.losses["paused, adopted"] >= 2
    assert report.acknowledged_rows > 500
    assert report.read_at_end["files"] >= report.acknowledged_rows
