"""Every line of a folder of growing CSV files is in the table once, despite all kills.

The long form is part of ``make crash``. A failing run prints its seed
(``INGESTER_TEST_CRASH_SEED`` repeats it) and leaves its folder.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from tests.crash.csv_source import Kills


@pytest.mark.slow
def test_a_source_of_csv_files_and_its_daemon_are_killed_and_every_line_is_there_once(
    tmp_path: Path,
) -> None:
    seed = int(os.environ.get("INGESTER_TEST_CRASH_SEED") or secrets.randbelow(1_000_000))
    kills = Kills(tmp_path, seed)
    wrong = kills.run(8)
    assert not wrong, f"seed {seed}, folder {tmp_path}:\n" + "\n".join(wrong[:20])
    assert kills.rows > 100
    assert kills.counts["daemon and disk"] == 1
