"""Guards gRPC against forks and the end of the interpreter.

    a client is made ──► used ──fork──► in the child: every call raises Forked
                          └────exit───► open streams are ended before the interpreter

gRPC's threads do not exist in a forked child and its locks keep their state: a call there hangs or
aborts, even with a new client or after the parent closed its own. Destructors must not run either:
they would wait for those threads, or end the parent's streams on the shared socket. So the child
never frees what it inherited.

A thread that returns from C++ after the interpreter has ended aborts the process ("terminate called
without an active exception"). So open streams are ended before. ``tests/client/test_processes.py``
covers both.
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
"""How long the end of the process waits for the answers of open writers."""

CLIENT_LOG = logging.getLogger("ingester.client")
"""The client's logger, in the process of the user."""

T = TypeVar("T")


class Open(Protocol):
    """Something that is ended before the interpreter."""

    def leave(self) -> None:
        """Begin to end; returns immediately."""

    def left(self, within_s: float) -> None:
        """Wait up to ``within_s`` seconds for the end, then give up."""


class OpenCalls:
    """Counts running gRPC calls in all threads: ``with calls: …``."""

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
        """No-op: calls end by themselves."""

    def left(self, within_s: float) -> None:
        """Wait up to ``within_s`` seconds for the calls to end."""
        with self._ended:
            self._ended.wait_for(lambda: not self._count, within_s)


class _State:
    """Whether this process has had a client, and is a fork of such a process."""

    used = False
    forked = False


_held: weakref.WeakSet[Any] = weakref.WeakSet()
_open: weakref.WeakSet[Any] = weakref.WeakSet()


def alive() -> bool:
    """False in a process that was forked after a client was made."""
    return not _State.forked


def check() -> None:
    """Raise :class:`Forked` in a process that was forked after a client was made."""
    if _State.forked:
        raise Forked(
            f"process {os.getpid()} was forked from one that had made a client, and gRPC does not "
            "work on both sides of a fork: start processes with "
            'multiprocessing.get_context("spawn") and make a client in each, or fork before the '
            "first client is made"
        )


def begin() -> None:
    """Record that a client is being made. Raises :class:`Forked`."""
    check()
    _State.used = True


def held(thing: T) -> T:
    """Register a pyarrow object that a forked child must not destroy; returns it."""
    _held.add(thing)
    return thing


def end_at_exit(thing: Open) -> None:
    """End ``thing`` before the interpreter, if it still exists."""
    _open.add(thing)


calls = OpenCalls()
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
                CLIENT_LOG.exception("a client could not be ended")


os.register_at_fork(after_in_child=_forked_child)
atexit.register(_end_all)
