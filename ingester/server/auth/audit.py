"""The audit log: one JSON line for each administrative action and each refusal.

    {"at": …, "principal": …, "token_id": …, "peer": …, "action": …, "namespace": …, "table": …,
     "outcome": "done" or a code, "message": …}

Refusals are bounded. A principal (without a token: an address) has ``BURST`` at once and one more
each second; all principals together have ``BURST_OF_ALL`` and ``PER_S``. The rest is counted, and
the next line says how many were left out. Callers without a token have separate bounds, so that
they cannot crowd out the refusals of tokens. A line that cannot be written is counted, logged once,
and delays nobody; half a line stays alone on its line. ``tests/server/auth/test_audit.py`` and
``test_rules.py`` try this.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import structlog

from ingester.secret_texts import masked
from ingester.server.auth.rights import Caller
from ingester.shown_text import escaped_json

log = structlog.get_logger(__name__)

BURST, BURST_OF_ALL, PER_S = 10.0, 100.0, 5.0
MAX_PRINCIPALS = 1024
MODE = 0o640
_MAX_CHARACTERS = 256
"""Longest text in a line."""
Place = tuple[str | None, str | None]


class AuditFailed(OSError):
    """The file cannot be opened; the message says which and why."""


class AuditLog:
    """Writes the lines; without a file it writes none. Any thread.

    Args:
        file: a path, ``-`` for standard error, or nothing.
        clock: seconds, for the limits.
    """

    def __init__(self, file: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._clock = clock
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._failing = False
        self._torn = False
        """The file ends in half a line."""
        self._strangers, self._known = _RefusalBounds(clock), _RefusalBounds(clock)
        self.lines = 0
        """Lines written."""
        self.left_out = 0
        """Refusals beyond the limits, and lines that could not be written."""
        self.reopen()

    def reopen(self) -> None:
        """Open the file again, for example after a rotation. Raises :class:`AuditFailed`."""
        if self._file in ("", "-"):
            return
        try:
            opened = _open(Path(self._file))
        except OSError as exc:
            # The error of a FIFO without a reader.
            why = "nobody reads this FIFO" if exc.errno == errno.ENXIO else exc.strerror
            raise AuditFailed(exc.errno, f"cannot be opened ({why})", self._file) from exc
        with self._lock:
            before, self._descriptor = self._descriptor, opened
            self._torn = _is_torn(Path(self._file))
            if before is not None:
                os.close(before)

    def done(self, caller: Caller, peer: str, action: str, place: Place, outcome: str) -> None:
        """Record an administrative action that has ended."""
        if self._file:
            self._write(_line(caller, peer, action, place, outcome))

    def noted(self, action: str, outcome: str, **more: object) -> None:
        """Record something that the daemon did by itself, such as reloading tokens."""
        if self._file:
            self._write(
                {"at": _now(), "principal": "-", "action": action, "outcome": outcome, **more}
            )

    def refused(
        self, caller: Caller, peer: str, action: str, place: Place, code: str, message: str
    ) -> None:
        """Record a refusal, within the bounds."""
        if not self._file:
            return
        line = _line(caller, peer, action, place, code) | {"message": message[:_MAX_CHARACTERS]}
        with self._lock:
            if caller.token_id:
                before = self._known.take(f"{caller.token_id}/{caller.name}")
            else:
                before = self._strangers.take(_address(peer))
            if before is None:
                self.left_out += 1
                return
        self._write(line | ({"left_out": before} if before else {}))

    def _write(self, line: dict[str, object]) -> None:
        told = {name: masked(v) if isinstance(v, str) else v for name, v in line.items()}
        data = escaped_json(msgspec.json.encode(told).decode()).encode() + b"\n"
        try:
            with self._lock:
                self._put(data)
                self.lines += 1
        except OSError as exc:
            self.left_out += 1
            if not self._failing:
                self._failing = True
                with contextlib.suppress(OSError):
                    log.error("audit log not written", error=str(exc), runbook="audit-not-written")
            return
        self._failing = False

    def _put(self, line: bytes) -> None:
        """Write a whole line, usually in one call. Under the lock."""
        to = sys.stderr.fileno() if self._descriptor is None else self._descriptor
        if self._torn:
            os.write(to, b"\n")
            self._torn = False
        left = line
        while left:
            # A nearly full disk takes a part and fails with the next one.
            written = os.write(to, left)
            left = left[written:]
            self._torn = bool(left)


class _RefusalBounds:
    """The bounds of refusals, for principals of one kind."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}
        self._all = _Bucket(BURST_OF_ALL, PER_S, clock())

    def take(self, principal: str) -> int | None:
        """Admit a refusal; return how many were left out before, or None if it is left out."""
        now = self._clock()
        bucket = self._buckets.pop(principal, None) or _Bucket(BURST, 1.0, now)
        self._buckets[principal] = bucket  # most recently used last
        if len(self._buckets) > MAX_PRINCIPALS:
            del self._buckets[next(iter(self._buckets))]
        if not (bucket.has(now) and self._all.has(now)):
            bucket.left_out += 1
            return None
        bucket.take()
        self._all.take()
        before, bucket.left_out = bucket.left_out, 0
        return before


class _Bucket:
    """A token bucket."""

    def __init__(self, burst: float, per_s: float, now: float) -> None:
        self._burst, self._per_s, self._at = burst, per_s, now
        self._room = burst
        self.left_out = 0

    def has(self, now: float) -> bool:
        self._room = min(self._burst, self._room + (now - self._at) * self._per_s)
        self._at = now
        return self._room >= 1.0

    def take(self) -> None:
        self._room -= 1.0


def _open(path: Path) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    # Neither opening a FIFO nor writing to it waits for its reader.
    descriptor = os.open(path, flags | os.O_NONBLOCK, MODE)
    mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
    if stat.S_ISREG(os.fstat(descriptor).st_mode) and mode & ~MODE:
        os.fchmod(descriptor, mode & MODE)
    return descriptor


def _is_torn(path: Path) -> bool:
    """Return whether a file ends in half a line, as after a full disk or a power cut."""
    with contextlib.suppress(OSError):
        if path.is_file() and path.stat().st_size:
            with path.open("rb") as file:
                file.seek(-1, os.SEEK_END)
                return file.read(1) != b"\n"
    return False


def _line(caller: Caller, peer: str, action: str, place: Place, outcome: str) -> dict[str, object]:
    namespace, table = (None if each is None else each[:_MAX_CHARACTERS] for each in place)
    return {
        "at": _now(),
        "principal": caller.name,
        "token_id": caller.token_id,
        "peer": peer[:_MAX_CHARACTERS],
        "action": action[:_MAX_CHARACTERS],
        "namespace": namespace,
        "table": table,
        "outcome": outcome,
    }


def _address(peer: str) -> str:
    """Return a peer without its port."""
    return peer.rpartition(":")[0]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
