"""``python -m tests.crash.faulty serve …``: the daemon with a jumping clock or a planned death.

    CRASH_CLOCK=FILE     wall clocks are off by the current number of seconds in the file
    CRASH_AT=STEP[:N]    ``kill -9`` when the process reaches the step for the n-th time (from 1)

Only the daemon's wall clocks and the time of its death are changed. Steps of the store are calls
on a store such as :class:`tests.fencing.pausing.PausingStore`, which pauses a daemon before each
call; here the process dies instead.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any, NamedTuple

from ingester.memory.heap_settings import lay_out_heap
from tests.fencing.pausing import PausingStore


class Call(NamedTuple):
    """A call on the store, by the path's suffix, and whether death precedes or follows it."""

    name: str
    path: str
    when: str
    after_a_file: bool = False
    """Whether a data file must have been put since the start: a commit of rows, not of a start."""


STORE_STEPS = {
    "file-put": Call("put", ".parquet", "after"),
    "changelog-put": Call("put", ".changelog", "after", True),
    "committing": Call("create", ".commit", "before", True),
    "committed": Call("create", ".commit", "after", True),
    "registered": Call("create", ".commit", "after"),
    "deleting-a-commit": Call("delete", ".commit", "before"),
    "commit-deleted": Call("delete", ".commit", "after"),
    "changelog-deleted": Call("delete", ".changelog", "after"),
}
"""Steps from a buffer to its commit; of a new epoch's commit in a table; of clean-up."""

FUNCTION_STEPS = {
    "releasing": ("ingester.buffer.tree", "BufferTree", "install", "before"),
    "released": ("ingester.buffer.tree", "BufferTree", "install", "after"),
    "segment-going": ("wal.disk", "Disk", "rename", "before"),
    "segment-put-aside": ("wal.disk", "Disk", "rename", "after"),
    "segment-gone": ("wal.disk", "Disk", "unlink", "after"),
    "replayed-some": ("ingester.buffer.tree", "BufferTree", "apply", "after"),
    "replayed-all": ("wal.log", "Log", "start", "before"),
}
"""Module, class, function and time of steps of the release, of segment removal, and of replay."""


class Death:
    """Kills the process at the n-th call of :meth:`nears`."""

    def __init__(self, times: int) -> None:
        self._left = times

    def nears(self) -> None:
        """Count one occurrence of the step."""
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()


class CrashingStore(PausingStore):
    """Passes everything on; kills the process at the n-th matching call."""

    def __init__(self, inner: Any, call: Call, death: Death) -> None:
        super().__init__(inner)
        self._call = call
        self._death = death
        self._has_put_a_file = False

    def _do(self, call: str, path: str, work: Callable[[], Any]) -> Any:
        step = self._call
        meant = call == step.name and path.endswith(step.path)
        meant = meant and (self._has_put_a_file or not step.after_a_file)
        if meant and step.when == "before":
            self._death.nears()
        result = work()
        self._has_put_a_file |= path.endswith(".parquet")
        if meant and step.when == "after":
            self._death.nears()
        return result


def _names_of_going_segments(disk: Any) -> set[Path]:
    """Return a set that collects the names of segments between their rename and removal."""
    going: set[Path] = set()
    rename = disk.rename

    def noted(self: Any, source: Path, target: Path) -> None:
        if source.suffix == ".wal":
            going.add(target)
        rename(self, source, target)

    disk.rename = noted
    return going


def die_at(step: str, times: int) -> None:
    """Make this process, the future daemon, die at the step."""
    import importlib

    death = Death(times)
    if step in STORE_STEPS:
        daemon = importlib.import_module("ingester.daemon.startup")
        inner = daemon.open_store

        def open_store(url: str, **options: Any) -> CrashingStore:
            return CrashingStore(inner(url, **options), STORE_STEPS[step], death)

        vars(daemon)["open_store"] = open_store
        return
    module, owner, name, when = FUNCTION_STEPS[step]
    place = getattr(importlib.import_module(module), owner)
    work = getattr(place, name)

    going = _names_of_going_segments(place) if name == "unlink" else set()

    def stepped(self: Any, *arguments: Any, **named: Any) -> Any:
        # Only unlinks of renamed segments count.
        meant = name != "rename" or arguments[0].suffix == ".wal"
        meant = meant and (name != "unlink" or arguments[0] in going)
        if meant and when == "before":
            death.nears()
        result = work(self, *arguments, **named)
        if meant and when == "after":
            death.nears()
        return result

    setattr(place, name, stepped)


def jump_with(file: Path) -> None:
    """Shift this process's wall clocks by the seconds in ``file``."""
    from persist.store import local

    true_time, true_write = time.time, local.write_synced

    def offset_s() -> float:
        try:
            return float(file.read_text() or 0)
        except FileNotFoundError:
            return 0.0

    class Jumping(datetime):
        """Replaces ``datetime`` in the local store."""

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + timedelta(seconds=offset_s())

    def write(target: str, data: Any) -> Any:
        """Files get the time of the jumping clock, as on a machine whose own clock jumps."""
        put = true_write(target, data)
        off = offset_s()
        if not off:
            return put
        at = os.stat(target).st_mtime + off
        os.utime(target, (at, at))
        return put._replace(at=datetime.fromtimestamp(at, UTC))

    time.time = lambda: true_time() + offset_s()
    vars(local)["datetime"] = Jumping
    vars(local)["write_synced"] = write


def main() -> None:
    """Run the command line of ``ingester`` with these faults."""
    # Called before the imports: otherwise the program re-executes itself after all of them.
    lay_out_heap()
    if clock := os.environ.get("CRASH_CLOCK"):
        jump_with(Path(clock))
    if step := os.environ.get("CRASH_AT"):
        name, _, times = step.partition(":")
        die_at(name, int(times or 1))
    from ingester.cli import main as ingester

    ingester()


if __name__ == "__main__":
    main()
