"""Direct writes and writes through the page cache produce the same bytes."""

from __future__ import annotations

import errno
import fcntl
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.wal.disks import require_zeroing
from wal.direct_io import BLOCK_BYTES, DirectDisk
from wal.disk import Disk, write_all, write_zeros

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wal.disk import Disk, Piece

FILE_BYTES = 16 * BLOCK_BYTES


class CountedWrites:
    """Counts direct writes, and can refuse the next one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.direct = 0
        self.refuse: int | None = None
        self._pwritev = os.pwritev
        monkeypatch.setattr(os, "pwritev", self.pwritev)

    def pwritev(self, fd: int, pieces: Sequence[Piece], offset: int) -> int:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            self.direct += 1
            if self.refuse is not None:
                raise OSError(self.refuse, os.strerror(self.refuse))
        return self._pwritev(fd, pieces, offset)


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> CountedWrites:
    """All writes of this process through ``os.pwritev``."""
    return CountedWrites(monkeypatch)


def require_direct_writes(folder: Path) -> None:
    """Skip the test if the folder's file system does not support direct writes."""
    try:
        fd = os.open(folder / "probe", os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
    except OSError:
        pytest.skip("this file system has no direct writes")
    os.close(fd)
    (folder / "probe").unlink()


@dataclass(frozen=True)
class Append:
    """A group after the last one."""

    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Overwrite:
    """Bytes anywhere."""

    offset: int
    size: int


@dataclass(frozen=True)
class Zero:
    """Zeros from an offset to the end of the file."""

    offset: int


@dataclass(frozen=True)
class Cut:
    """Another length."""

    size: int


PLACES = st.integers(0, FILE_BYTES)
STEPS = st.one_of(
    st.lists(st.sampled_from([1, 8, 40, 4056, 4096, 5000, 20_000]), min_size=1, max_size=5).map(
        lambda sizes: Append(tuple(sizes))
    ),
    st.builds(Overwrite, PLACES, st.sampled_from([1, 4096, 9000])),
    st.builds(Zero, PLACES | st.sampled_from([0, BLOCK_BYTES])),
    st.builds(Cut, PLACES),
)


def _bytes(size: int, salt: int) -> bytes:
    return bytes((salt + index) % 251 + 1 for index in range(size))


def _do(disk: Disk, fd: int, steps: Sequence[Append | Overwrite | Zero | Cut]) -> None:
    end = 0
    for salt, step in enumerate(steps):
        if isinstance(step, Append):
            pieces: list[Piece] = [_bytes(size, salt + size) for size in step.sizes]
            end = write_all(disk, fd, pieces, end)
        elif isinstance(step, Overwrite):
            end = max(end, write_all(disk, fd, [_bytes(step.size, salt)], step.offset))
        elif isinstance(step, Zero):
            write_zeros(disk, fd, step.offset, max(step.offset, disk.size(fd)))
        else:
            disk.truncate(fd, step.size)
            end = min(end, step.size)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=st.lists(STEPS, max_size=8), used=st.none() | st.integers(0, 2 * FILE_BYTES))
def test_the_bytes_are_the_same_as_through_the_page_cache(
    tmp_path: Path, steps: list[Append | Overwrite | Zero | Cut], used: int | None
) -> None:
    if used is not None:
        require_zeroing(tmp_path)
    held = []
    disks = {"ordinary": Disk(), "direct": DirectDisk(), "by size": DirectDisk(BLOCK_BYTES + 1)}
    for name, disk in disks.items():
        path = tmp_path / name
        if used is None:
            fd = disk.open(path, "create")
            disk.allocate(fd, FILE_BYTES)
        else:
            path.write_bytes(_bytes(used, 5))
            fd = disk.open(path, "reuse")
            disk.zero(fd, FILE_BYTES)
            assert path.read_bytes() == bytes(FILE_BYTES)
        _do(disk, fd, steps)
        disk.close(fd)
        held.append(path.read_bytes())
    assert held == held[:1] * 3


@pytest.mark.parametrize("used", [False, True])
def test_consecutive_appends_bypass_the_page_cache(
    tmp_path: Path, writes: CountedWrites, used: bool
) -> None:
    disk = DirectDisk()
    if used:
        require_zeroing(tmp_path)
        (tmp_path / "log").write_bytes(_bytes(FILE_BYTES - 100, 9))
    fd = disk.open(tmp_path / "log", "reuse" if used else "create")
    require_direct_writes(tmp_path)
    if used:
        disk.zero(fd, FILE_BYTES)
    else:
        disk.allocate(fd, FILE_BYTES)
        write_zeros(disk, fd, 0, FILE_BYTES)
    writes.direct = 0
    for number in range(10):
        write_all(disk, fd, [_bytes(1000, number)], number * 1000)
    assert writes.direct == 10
    disk.close(fd)
    whole = b"".join(_bytes(1000, number) for number in range(10))
    assert (tmp_path / "log").read_bytes() == whole.ljust(FILE_BYTES, b"\0")


def test_small_appends_use_the_page_cache_if_no_caller_waits_for_a_sync(tmp_path: Path) -> None:
    disk = DirectDisk(least_bytes=2 * BLOCK_BYTES)
    fd = disk.open(tmp_path / "log", "create")
    require_direct_writes(tmp_path)
    disk.allocate(fd, FILE_BYTES)
    end, ways, pwritev = 0, [], os.pwritev

    def seen(to: int, pieces: Sequence[Piece], offset: int) -> int:
        ways.append("cache" if to == fd else "device")
        return pwritev(to, pieces, offset)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwritev", seen)
        for size in (100, 3 * BLOCK_BYTES, 5000, 2 * BLOCK_BYTES):
            end = write_all(disk, fd, [_bytes(size, size)], end)
    disk.close(fd)
    assert ways == ["cache", "device", "cache", "device"]
    whole = b"".join(_bytes(size, size) for size in (100, 3 * BLOCK_BYTES, 5000, 2 * BLOCK_BYTES))
    assert (tmp_path / "log").read_bytes() == whole.ljust(FILE_BYTES, b"\0")


def test_an_append_larger_than_the_staging_buffer_is_several_writes(tmp_path: Path) -> None:
    disk = DirectDisk()
    fd = disk.open(tmp_path / "log", "create")
    pieces: list[Piece] = [_bytes(100, 1), os.urandom(9 << 20), _bytes(77, 2)]
    disk.allocate(fd, 10 << 20)
    end = write_all(disk, fd, pieces, 0)
    disk.close(fd)
    assert (tmp_path / "log").read_bytes()[:end] == b"".join(pieces)


def test_a_file_system_without_direct_writes_is_written_through_the_page_cache(
    tmp_path: Path, writes: CountedWrites
) -> None:
    disk = DirectDisk()
    fd = disk.open(tmp_path / "log", "create")
    disk.allocate(fd, FILE_BYTES)
    writes.refuse = errno.EINVAL
    for number in range(3):
        write_all(disk, fd, [_bytes(100, number)], number * 100)
    disk.close(fd)
    assert writes.direct <= 1, "it was tried once"
    whole = b"".join(_bytes(100, number) for number in range(3))
    assert (tmp_path / "log").read_bytes() == whole.ljust(FILE_BYTES, b"\0")


def test_after_an_error_the_file_is_written_through_the_page_cache(
    tmp_path: Path, writes: CountedWrites
) -> None:
    disk = DirectDisk()
    fd = disk.open(tmp_path / "log", "create")
    require_direct_writes(tmp_path)
    disk.allocate(fd, FILE_BYTES)
    write_all(disk, fd, [_bytes(5000, 1)], 0)
    writes.refuse = errno.EIO
    with pytest.raises(OSError, match="Input/output"):
        write_all(disk, fd, [_bytes(5000, 2)], 5000)
    writes.refuse = None
    write_zeros(disk, fd, 5000, FILE_BYTES)
    write_all(disk, fd, [_bytes(10, 3)], 5000)
    disk.close(fd)
    assert writes.direct == 2
    expected = (_bytes(5000, 1) + _bytes(10, 3)).ljust(FILE_BYTES, b"\0")
    assert (tmp_path / "log").read_bytes() == expected


def test_a_file_without_allocation_is_as_long_as_its_content(
    tmp_path: Path, writes: CountedWrites
) -> None:
    disk = DirectDisk()
    fd = disk.open(tmp_path / "log", "create")
    write_all(disk, fd, [_bytes(5000, 1)], 0)
    disk.close(fd)
    assert writes.direct == 0
    assert (tmp_path / "log").read_bytes() == _bytes(5000, 1)


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    disk = DirectDisk()
    before = len(os.listdir("/proc/self/fd"))
    for number in range(5):
        fd = disk.open(tmp_path / f"{number}", "create")
        write_all(disk, fd, [b"x" * 100], 0)
        if number % 2:
            disk.truncate(fd, 10)
        disk.close(fd)
    assert len(os.listdir("/proc/self/fd")) == before
