"""Law: a segment is changed between two groups: when one is asked for, and at a certain age.

Everybody who asks while a rotation is due shares it, and is answered exactly once. One that fails
because of age alone is tried again after another age.
"""

from __future__ import annotations

import math

import trio

from wal.errors import LogError, LogFailed
from wal.segments import SegmentSet


class _Request:
    """A rotation that was asked for."""

    def __init__(self) -> None:
        self.force = False
        self.done = trio.Event()
        self.error: LogError | None = None

    def answer(self, error: LogError | None) -> None:
        self.error = error
        self.done.set()


class Rotations:
    """Decides when the next group belongs into another segment. Loop only."""

    def __init__(self, segments: SegmentSet, age_s: float) -> None:
        self._segments = segments
        self._age_s = age_s
        self._request: _Request | None = None
        self._retry_at = 0.0

    @property
    def deadline(self) -> float:
        """The time at which the open segment is too old; infinity where it holds no operation."""
        since = self._segments.first_operation_at
        return math.inf if since is None else max(since + self._age_s, self._retry_at)

    @property
    def due(self) -> bool:
        """Whether a rotation has to come before the next group."""
        return self._request is not None or trio.current_time() >= self.deadline

    async def wait(self, *, force: bool) -> None:
        """Return when the running task has rotated; the errors of `SegmentSet.rotate`."""
        request = self._request = self._request or _Request()
        request.force = request.force or force
        await request.done.wait()
        if request.error is not None:
            # A new one for each caller: one exception raised in several tasks mixes tracebacks.
            raise type(request.error)(*request.error.args) from request.error

    async def rotate(self) -> None:
        """Rotate for whoever asked and for age; raises LogFailed, and answers any other error."""
        request, self._request = self._request, None
        segment = self._segments.open
        used = segment is None or segment.fill.operations > 0
        error: LogError | None = None
        try:
            if used or (request is not None and request.force):
                await self._segments.rotate()
        except LogError as exc:
            error = exc
            self._retry_at = trio.current_time() + self._age_s
        if request is not None:
            request.answer(error)
        if isinstance(error, LogFailed):
            raise error

    def refuse(self, error: LogError) -> None:
        """Answer whoever has asked with `error`."""
        request, self._request = self._request, None
        if request is not None:
            request.answer(error)
