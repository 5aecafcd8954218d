"""A stream of a caller whose token may end: each message that it brings is let in anew.

    a message ─▶ the permit is renewed ─▶ the handler            or the call ends with the refusal
    the permit ends, and no message comes ─▶ an empty answer, which has the client end the call
    a call that waits for rows ─▶ its wait is cancelled

Law of this file: what the handler reads and writes is pyarrow's, through these, and by one thread
at a time in each direction. The empty answer is another thread's: a client that reads nothing keeps
it waiting, and nobody else. Neither is touched once the call is over: pyarrow frees them with it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import trio

from ingester.errors import ClientGone
from ingester.server.auth.access import Access, Permit
from ingester.server.services import Services
from ingester.write.answer import send_answer


class _Reader:
    """pyarrow's reader of a call, of which nothing comes without a permit."""

    def __init__(self, reader: Any, permit: Permit) -> None:
        self._reader = reader
        self._permit = permit
        self.told_to_end = False

    @property
    def schema(self) -> Any:
        """The schema that the client sent."""
        return self._reader.schema

    def read_chunk(self) -> Any:
        """The next message. Raises :class:`Unauthenticated`, :class:`Forbidden`."""
        try:
            chunk = self._reader.read_chunk()
        except StopIteration:
            if self.told_to_end:
                self._permit.renew()
            raise
        self._permit.renew()
        return chunk


class _Writer:
    """pyarrow's writer of a call, for two threads."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._lock = threading.Lock()
        self._is_over = False

    def write(self, answer: pa.Buffer) -> None:
        """Send one PutResult; nothing once the call is over."""
        with self._lock:
            if not self._is_over:
                self._writer.write(answer)

    def end(self) -> None:
        """Write nothing from now on, and return when nobody writes: pyarrow frees the writer."""
        with self._lock:
            self._is_over = True


@contextmanager
def permitted(
    services: Services, permit: Permit, reader: Any, writer: Any
) -> Iterator[tuple[Any, Any]]:
    """Give reader and writer of a call as long as it is permitted; themselves without tokens."""
    access = services.access
    if not access.enabled:
        yield reader, writer
        return
    messages, answers = _Reader(reader, permit), _Writer(writer)

    def wake() -> None:
        with contextlib.suppress(ClientGone):
            send_answer(answers, b"")

    def end() -> None:
        messages.told_to_end = True
        threading.Thread(target=wake, name="end-of-permit", daemon=True).start()

    with access.holding(permit, end):
        try:
            yield messages, answers
        finally:
            # Waits for the empty answer where the client reads nothing.
            answers.end()


async def permitted_wait(
    access: Access, permit: Permit, wait: Callable[[], Awaitable[None]]
) -> None:
    """Wait as long as it is permitted. On the loop.

    Raises:
        Unauthenticated, Forbidden: it is no longer.
    """
    if not access.enabled:
        await wait()
        return
    scope, loop = trio.CancelScope(), trio.lowlevel.current_trio_token()
    with access.holding(permit, lambda: loop.run_sync_soon(scope.cancel)), scope:
        await wait()
    permit.renew()
