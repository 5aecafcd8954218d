"""Only one process can use a data directory."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from wal import DirectoryLock, DirectoryLocked

HOLD = (
    "import sys, pathlib, wal\n"
    "with wal.DirectoryLock(pathlib.Path(sys.argv[1])):\n"
    "    print('locked', flush=True)\n"
    "    sys.stdin.read()\n"
)


def hold(data_dir: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(data_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    return process


def test_a_second_process_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    with hold(tmp_path) as process:
        with (
            pytest.raises(DirectoryLocked, match=f"process {process.pid}") as caught,
            DirectoryLock(tmp_path),
        ):
            pass
        assert caught.value.pid == process.pid
        process.communicate("")
    with DirectoryLock(tmp_path):
        assert (tmp_path / "LOCK").read_text() == f"{os.getpid()}\n"


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    with hold(tmp_path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        with DirectoryLock(tmp_path):
            pass


def test_a_lock_of_the_same_process_excludes_too_and_ends_with_its_block(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path / "made" / "where missing")
    with lock, pytest.raises(DirectoryLocked), DirectoryLock(tmp_path / "made" / "where missing"):
        pass
    with lock:
        pass


def test_a_lock_file_with_invalid_content_still_excludes(tmp_path: Path) -> None:
    with hold(tmp_path) as process:
        (tmp_path / "LOCK").write_text("nonsense")
        with pytest.raises(DirectoryLocked, match="unknown process"), DirectoryLock(tmp_path):
            pass
        process.communicate("")


def test_a_lock_file_removed_before_it_is_locked_is_not_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock
    removed: list[Path] = []

    def late(fd: int, how: int) -> None:
        if not removed:
            removed.append(tmp_path / "LOCK")
            removed[0].unlink()  # by the previous owner of the lock
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with DirectoryLock(tmp_path):
        assert removed
        with pytest.raises(DirectoryLocked), DirectoryLock(tmp_path):
            pass
