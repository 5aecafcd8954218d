"""A disk whose data sync ends when the test says so, for events during a sync."""

from __future__ import annotations

import threading

import trio

from tests.wal.disks import FaultyDisk


class HeldDisk(FaultyDisk):
    """Holds a data sync until the test releases it, and reports when one has begun."""

    def __init__(self) -> None:
        super().__init__()
        self.held = threading.Event()
        self.let_go = threading.Event()

    def hold(self, then: OSError | None = None, *, call: str = "fdatasync") -> None:
        """Hold data syncs until ``let_go`` is set; they fail with ``then`` if given."""

        def wait(_: object) -> None:
            self.held.set()
            assert self.let_go.wait(20)
            if then is not None:
                raise then

        self.before(call, wait)

    async def wait_until_held(self) -> None:
        """Return when a data sync has begun and waits."""
        assert await trio.to_thread.run_sync(self.held.wait, 20)


class SteppedDisk(FaultyDisk):
    """Does one data sync for each `step` after `hold`."""

    def __init__(self) -> None:
        super().__init__()
        self._begun = threading.Semaphore(0)
        self._steps = threading.Semaphore(0)

    def hold(self) -> None:
        """Hold every later data sync until its step."""

        def wait(_: object) -> None:
            self._begun.release()
            assert self._steps.acquire(timeout=20)

        self.before("fdatasync", wait)

    async def wait_until_held(self) -> None:
        """Return when the next data sync has begun and waits."""
        assert await trio.to_thread.run_sync(lambda: self._begun.acquire(timeout=20))

    def step(self, syncs: int = 1) -> None:
        """Release that many syncs."""
        self._steps.release(syncs)
