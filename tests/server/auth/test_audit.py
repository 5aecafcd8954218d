"""The audit log on a failing file: no line is corrupted, and no request waits for it."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from ingester.server.auth.audit import AuditFailed, AuditLog

# A write that blocks on a reader fails within seconds.
pytestmark = pytest.mark.timeout(20)


@contextmanager
def room_for(nbytes: int) -> Iterator[None]:
    """Limit the size of this process's files to ``nbytes``, as on a disk that is nearly full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def actions(file: Path) -> tuple[list[str], int]:
    """The actions of the complete lines, and the number of incomplete lines."""
    whole, others = [], 0
    for line in file.read_text().splitlines():
        try:
            whole.append(json.loads(line)["action"])
        except ValueError:
            others += 1
    return whole, others


@pytest.mark.parametrize("opened_anew", [False, True])
def test_half_a_line_is_not_counted_and_spoils_no_other(tmp_path: Path, opened_anew: bool) -> None:
    file = tmp_path / "audit.jsonl"
    audit = AuditLog(str(file))
    audit.noted("one", "done")
    with capture_logs() as logs, room_for(file.stat().st_size + 20):
        audit.noted("two", "done")
        audit.noted("three", "done")
    assert [each["event"] for each in logs] == ["audit log not written"]
    assert (audit.lines, audit.left_out) == (1, 2)
    if opened_anew:
        audit = AuditLog(str(file))
    audit.noted("four", "done")
    audit.noted("five", "done")
    assert actions(file) == (["one", "four", "five"], 1)
    assert "\n\n" not in file.read_text()


def test_a_file_that_is_moved_away_takes_its_half_line_with_it(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    audit = AuditLog(str(file))
    with capture_logs(), room_for(20):
        audit.noted("one", "done")
    file.rename(tmp_path / "audit.1")
    audit.reopen()
    audit.noted("two", "done")
    assert actions(file) == (["two"], 0)
    assert file.read_text().startswith("{")


def test_a_fifo_holds_up_nobody(tmp_path: Path) -> None:
    file = tmp_path / "fifo"
    os.mkfifo(file)
    with pytest.raises(AuditFailed, match=f"nobody reads this FIFO.*{file}"):
        AuditLog(str(file))
    reader = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    with capture_logs() as logs:
        audit = AuditLog(str(file))
        audit.noted("one", "done")
        assert json.loads(os.read(reader, 1 << 16))["action"] == "one"
        # The reader has stopped reading, but the FIFO is still open.
        for _ in range(5000):
            audit.noted("many", "done")
        assert audit.left_out > 0
        assert audit.lines + audit.left_out == 5001
        os.close(reader)
        audit.noted("last", "done")
    assert {each["event"] for each in logs} == {"audit log not written"}
