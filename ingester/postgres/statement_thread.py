"""A statement in a thread of its own, which can be ended while the server is at work on it.

    StatementThread(connection, work) ── wait ──▶ done? ── result ──▶ what work returned, or raised
                                      └─ interrupt ──▶ cancelled at the server; the thread is over

Law of this file: a thread is over when its owner is. A server that does not even take a cancel
loses the connection.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

CANCELLED_WITHIN_S = 10.0
T = TypeVar("T")


class Stopped(Exception):
    """The caller has said to stop, and nothing is left of what was begun."""


class StatementThread(Generic[T]):
    """Runs ``work``, which uses the connection; nobody else does meanwhile."""

    def __init__(self, connection: Any, work: Callable[[], T]) -> None:
        """Begin at once."""
        self._connection = connection
        self._work = work
        self._found: list[T] = []
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="postgres-statement", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._found.append(self._work())
        except BaseException as exc:
            self._failed = exc

    def wait(self, wait_s: float) -> bool:
        """Whether it is done, after so many seconds at most."""
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def result(self) -> T:
        """What ``work`` has returned, once it is done; what it has raised is raised."""
        self._thread.join()
        if self._failed is not None:
            raise self._failed
        [found] = self._found
        return found

    def interrupt(self) -> None:
        """Cancel the statement and wait for the thread's end; what the work raises is dropped.

        The connection is good for a rollback at most afterwards, and may be lost.
        """
        if not self._thread.is_alive():
            return
        # It opens a connection of its own, which may take as long as the network likes.
        cancel = threading.Thread(target=self._cancel, name="postgres-cancel", daemon=True)
        cancel.start()
        self._thread.join(CANCELLED_WITHIN_S)
        cancel.join(CANCELLED_WITHIN_S)
        # A cancel that comes late would end what is asked next.
        if self._thread.is_alive() or cancel.is_alive():
            _shut(self._connection)
            self._thread.join()

    def _cancel(self) -> None:
        import psycopg2

        with contextlib.suppress(psycopg2.Error):
            self._connection.cancel()


def _shut(connection: Any) -> None:
    """End the network connection under a statement that waits for it."""
    import psycopg2

    with (
        contextlib.suppress(psycopg2.Error, OSError),
        # The descriptor stays libpq's own: its copy is what is closed here.
        socket.socket(fileno=os.dup(connection.fileno())) as under,
    ):
        under.shutdown(socket.SHUT_RDWR)
