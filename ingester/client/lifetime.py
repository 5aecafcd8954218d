"""gRPC lives in one process, from its first client to the interpreter's end.

    a client is made ──► used ──fork──► in the child: every call raises Forked
                          └────exit───► what is open is ended, so that no thread wakes too late

gRPC's threads do not exist in a forked child, and its locks are as they were: a call there never
returns or aborts, with a new client as well, and also when the parent's was closed before. Nor may
a destructor run, which would wait for those threads, or end the parent's streams on the socket that
both share: the child keeps what it inherited for ever.

A thread that comes back from C++ when the interpreter is gone takes the process down with it
(«terminate called without an active exception»): so whatever is open is ended before.
"""

import atexit
import ctypes
import logging
import os
import threading
import time
import weakref
from typing import Any, Protocol, TypeVar

from .errors import Forked

EXIT_WITHIN_S = 5.0
"""The time that the end of the process waits for answers that a writer is still owed."""

CLIENT_LOG = logging.getLogger("ingester.client")
"""The caller's logger: its operators have no runbook of the daemon."""

T = TypeVar("T")


class Open(Protocol):
    """Something open, which is ended before the interpreter is."""

    def leave(self) -> None:
        """Begin to end this; does not wait."""

    def left(self, within_s: float) -> None:
        """Wait up to ``within_s`` seconds for the end, then give up what is unfinished."""


class Calls:
    """Calls of gRPC that are under way, in any thread: ``with calls: …``."""

    def __init__(self) -> None:
        self._count = 0
        self._ended = threading.Condition()

    def __enter__(self) -> None:
        check()
        with self._ended:
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._ended:
            self._count -= 1
            self._ended.notify_all()

    def leave(self) -> None:
        """Do nothing: calls end by themselves."""

    def left(self, within_s: float) -> None:
        """Wait up to ``within_s`` seconds for the calls to end."""
        with self._ended:
            self._ended.wait_for(lambda: not self._count, within_s)


class _State:
    """Whether this process has had a client, and was then forked."""

    used = False
    forked = False


_held: weakref.WeakSet[Any] = weakref.WeakSet()
_open: weakref.WeakSet[Any] = weakref.WeakSet()


def alive() -> bool:
    """Whether what was opened may still be touched; see :func:`check`."""
    return not _State.forked


def check() -> None:
    """Raise :class:`Forked` in a process that was forked off one that had a client."""
    if _State.forked:
        raise Forked(
            f"process {os.getpid()} was forked off one that had made a client, and gRPC does not "
            "work on both sides of a fork: start processes with "
            'multiprocessing.get_context("spawn") and make a client in each, or fork before the '
            "first client is made"
        )


def begin() -> None:
    """Note that a client is about to be made. Raises :class:`Forked`."""
    check()
    _State.used = True


def held(thing: T) -> T:
    """``thing`` of pyarrow's, which is never destroyed in a forked child."""
    _held.add(thing)
    return thing


def end_at_exit(thing: Open) -> None:
    """Have ``thing`` ended before the interpreter, if it is still there."""
    _open.add(thing)


calls = Calls()
end_at_exit(calls)


def _forked_child() -> None:
    if not _State.used:
        return
    _State.forked = True
    for thing in list(_held):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))  # never destroyed, not even at exit


def _end_all() -> None:
    if _State.forked:
        return
    give_up_at = time.monotonic() + EXIT_WITHIN_S

    def left(thing: Open) -> None:
        thing.left(max(0.0, give_up_at - time.monotonic()))

    things = list(_open)
    for end in (lambda thing: thing.leave(), left):
        for thing in things:
            try:
                end(thing)
            except Exception:
                CLIENT_LOG.exception("a client could not be ended in order")


os.register_at_fork(after_in_child=_forked_child)
atexit.register(_end_all)
