"""A kernel control group that kills a process which exceeds its memory limit."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.drivers.daemon import Daemon

TREE = Path("/sys/fs/cgroup")
LOOK_S = 0.02


class MemoryLimit:
    """A memory limit for processes that are started with :meth:`command`.

    Where the kernel allows no group, :meth:`watch` kills the daemon instead.
    """

    def __init__(self, most_bytes: int, group: Path | None) -> None:
        self._most_bytes = most_bytes
        self._group = group
        self.by = "look" if group is None else "control group"
        """The enforcing party: the kernel's control group, or a check of the resident bytes
        every 20 ms."""

    def command(self, command: Sequence[str]) -> Sequence[str]:
        """Return a command that enters the group and then becomes ``command``."""
        if self._group is None:
            return command
        enter = f'echo $$ > {self._group}/cgroup.procs && exec "$@"'
        return ["/bin/sh", "-c", enter, "sh", *command]

    @property
    def kills(self) -> int | None:
        """The number of kills in the group; None without a group."""
        if self._group is None:
            return None
        for file in ("memory.events", "memory.oom_control"):
            with suppress(OSError):
                facts = dict(line.split() for line in (self._group / file).read_text().splitlines())
                return int(facts["oom_kill"])
        return None

    @contextmanager
    def watch(self, daemon: Daemon) -> Iterator[None]:
        """Kill the daemon when it exceeds the limit, where no group does."""
        over = threading.Event()

        def look() -> None:
            while not over.wait(LOOK_S) and daemon.process.poll() is None:
                if daemon.resident_bytes > self._most_bytes:
                    daemon.process.kill()

        watcher = threading.Thread(target=look)
        if self._group is None:
            watcher.start()
        try:
            yield
        finally:
            over.set()
            if self._group is None:
                watcher.join()


@contextmanager
def memory_limit(name: str, most_bytes: int) -> Iterator[MemoryLimit]:
    """Make a limit; its processes must be gone at the end."""
    group = _group(f"{name}-{os.getpid()}", most_bytes)
    try:
        yield MemoryLimit(most_bytes, group)
    finally:
        if group is not None:
            group.rmdir()


def _group(name: str, most_bytes: int) -> Path | None:
    """Make a group, of version 1 or 2; None if that is not permitted."""
    for folder, file in ((TREE / "memory", "memory.limit_in_bytes"), (TREE, "memory.max")):
        if not (folder / "cgroup.procs").exists() or not os.access(folder, os.W_OK):
            continue
        group = folder / name
        with suppress(OSError):
            group.mkdir()
            try:
                (group / file).write_text(str(most_bytes))
                return group
            except OSError:
                group.rmdir()
    return None
