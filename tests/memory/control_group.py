"""A control group of the kernel that ends a process which takes more memory than it may."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.drivers.daemon import Daemon

TREE = Path("/sys/fs/cgroup")
LOOK_S = 0.02


class Watched:
    """A daemon that is killed when it takes more than it may.

    Attributes:
        by: What kills it: the kernel's ``control group``, or a ``look`` every 20 ms.
        peak_bytes: The most bytes that were resident, as looks have seen it.
    """

    def __init__(self, by: str) -> None:
        self.by = by
        self.peak_bytes = 0


@contextmanager
def killed_beyond(daemon: Daemon, most_bytes: int) -> Iterator[Watched]:
    """Have the daemon killed where more bytes than these are resident."""
    group = _group(f"ingester-test-{daemon.pid}", most_bytes - daemon.resident_bytes, daemon.pid)
    watched = Watched("look" if group is None else "control group")
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_S) and daemon.process.poll() is None:
            watched.peak_bytes = max(watched.peak_bytes, daemon.resident_bytes)
            if group is None and watched.peak_bytes > most_bytes:
                daemon.process.kill()

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield watched
    finally:
        over.set()
        watcher.join()
        if group is not None:
            daemon.kill()
            group.rmdir()


def _group(name: str, more_bytes: int, pid: int) -> Path | None:
    """Make a group for a process that may take so much more; None where the kernel lets us not.

    What a process had before stays with its group of before.
    """
    for folder, file in ((TREE / "memory", "memory.limit_in_bytes"), (TREE, "memory.max")):
        if not (folder / "cgroup.procs").exists() or not os.access(folder, os.W_OK):
            continue
        group = folder / name
        with suppress(OSError):
            group.mkdir()
            try:
                (group / file).write_text(str(more_bytes))
                (group / "cgroup.procs").write_text(str(pid))
                return group
            except OSError:
                group.rmdir()
    return None
