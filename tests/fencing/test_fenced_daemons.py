"""A daemon that was replaced while it stood still: fenced, and its rows adopted once."""

from __future__ import annotations

from pathlib import Path

import pyarrow.flight as fl

from tests.fencing.pairs import (
    adopt,
    adopted_rows,
    ask_to_persist,
    fenced,
    operations_in_log,
    pause,
    resume,
    rows_in_files,
    start,
    write,
)
from tests.integration.wire import events, persist, rows

TOUCHED = ("ns", "touched")
"""By both daemons."""
ALONE = ("ns", "alone")
"""By the first daemon only."""


def test_what_a_fenced_daemon_had_acknowledged_is_adopted_once(tmp_path: Path) -> None:
    with start(tmp_path, "first") as first:
        write(first, TOUCHED, events(0, 30, days=3))
        ask_to_persist(first, TOUCHED)
        write(first, TOUCHED, events(30, 30, days=3), events(60, 30, days=2))
        write(first, ALONE, events(0, 20, days=2))
        pause(first)
        with start(tmp_path, "second") as second:
            write(second, TOUCHED, events(90, 30, days=4))
            with fenced(first):
                resume(first)
                ask_to_persist(first, TOUCHED)
            assert operations_in_log(first.data_dir) == 4
            adopted = adopt(tmp_path, "first")
            assert adopted[TOUCHED]["rows"] == 60
            assert adopted[TOUCHED]["skipped_rows"] == 30
            assert adopted[TOUCHED]["files"] == 3
            assert adopted[ALONE]["rows"] == 20
            assert adopted_rows(tmp_path, "first") == 0
            assert operations_in_log(first.data_dir) == 4
            write(second, TOUCHED, events(120, 10))
            write(second, ALONE, events(20, 10))
            with fl.connect(second.flight) as client:
                for table, count in ((TOUCHED, 130), (ALONE, 30)):
                    persist(client, table)
                    assert rows(client, table) == list(range(count))
            assert second.terminate() == 0
    assert adopted_rows(tmp_path, "first") == 0
    assert rows_in_files(tmp_path, TOUCHED) == list(range(130))
    assert rows_in_files(tmp_path, ALONE) == list(range(30))
