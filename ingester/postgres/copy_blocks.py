"""The rows that ``COPY … TO STDOUT`` sends, as blocks of bytes that end where a row ends.

    server ──CopyData, a row each──▶ psycopg2's thread ──▶ a queue of two blocks ──▶ whoever reads

Law of this file: what waits is bounded in bytes, but for one row that is larger by itself. Ending
early cancels the statement at the server.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache
from queue import Empty, Full, Queue
from types import TracebackType
from typing import Any

from ingester.postgres.connection import told
from ingester.postgres.statement_thread import StatementThread, Stopped

BLOCK_BYTES = 8 << 20
QUEUED = 2
"""One that is ready when the reader comes back, and one for the spell before that."""
_STOP_WITHIN_S = 0.1


class CopyBlocks:
    """One statement's rows. Iterate once, then ask for ``rows``; :meth:`end` in any case."""

    def __init__(
        self, connection: Any, statement: Any, rows_at_most: int, stopped: Callable[[], bool]
    ) -> None:
        """Begin at once.

        Args:
            statement: psycopg2's ``Composed``, ``COPY … TO STDOUT``.
            rows_at_most: of a block.
            stopped: asked whether to end, several times a second.
        """
        self._stopped = stopped
        self._blocks: Queue[bytes] = Queue(QUEUED)
        self._over = threading.Event()
        self._rows: list[bytes] = []
        self._nbytes = 0
        self._rows_at_most = rows_at_most
        self._thread = StatementThread(connection, lambda: self._copy(connection, statement))

    @property
    def rows(self) -> int:
        """The number of rows, as the server says it; once all blocks were read."""
        return self._thread.result()

    def __iter__(self) -> Iterator[bytes]:
        """The blocks.

        Raises:
            Stopped: it was to end.
            SourceFailed, psycopg2.OperationalError
        """
        while True:
            if self._stopped():
                raise Stopped("stopped while a table was copied")
            done = self._thread.wait(0)
            try:
                yield self._blocks.get(timeout=0 if done else _STOP_WITHIN_S)
            except Empty:
                if done:
                    self._thread.result()
                    return

    def end(self) -> None:
        """End the statement, if it is not over, and its thread."""
        self._over.set()
        self._thread.interrupt()

    def write(self, row: bytes) -> None:
        """Take a row. Called by psycopg2 alone."""
        self._rows.append(row)
        self._nbytes += len(row)
        if self._nbytes >= BLOCK_BYTES or len(self._rows) >= self._rows_at_most:
            self._hand_over()

    def _copy(self, connection: Any, statement: Any) -> int:
        _hush()
        with told(), connection.cursor() as cursor:
            cursor.copy_expert(statement, self)
            rows = int(cursor.rowcount)
        if self._rows:
            self._hand_over()
        return rows

    def _hand_over(self) -> None:
        block = self._rows[0] if len(self._rows) == 1 else b"".join(self._rows)
        self._rows, self._nbytes = [], 0
        while not self._over.is_set():  # What is cancelled is not wanted, but has to be read.
            try:
                self._blocks.put(block, timeout=_STOP_WITHIN_S)
                return
            except Full:
                continue


@cache
def _hush() -> None:
    """Print nothing of an error that is raised as well.

    Where a server ends a COPY and the connection, psycopg2 prints the one before it raises the
    other: it decodes a notice while an exception is set.
    """
    import psycopg2

    shown = sys.excepthook

    def show(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        if kind is not SystemError or not isinstance(value.__cause__, psycopg2.Error):
            shown(kind, value, trace)

    sys.excepthook = show
