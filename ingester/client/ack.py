"""The acknowledgement of one batch: set once by the writer, awaited by any number of threads."""

import contextlib
import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any

import msgspec

from . import lifetime
from .errors import ClientError, InvalidRequest
from .wire import WriteAnswer


class Ack:
    """The promise of an answer, returned by :meth:`Writer.write`.

    Threads wait with :meth:`result`; a task of asyncio uses ``await``.
    """

    __slots__ = ("_answer", "_callbacks", "_error", "watch")

    def __init__(self, watch: Callable[[], float]) -> None:
        """``watch`` gives up on a silent daemon and returns the seconds until its next call."""
        self._answer: WriteAnswer | None = None
        self._error: ClientError | None = None
        # A waiting thread is a callback that wakes it. These come first: they never block.
        self._callbacks: list[Callable[[Ack], object]] = []
        self.watch = watch

    def done(self) -> bool:
        """Whether the answer or the error has arrived."""
        return self._answer is not None or self._error is not None

    def result(self, timeout_s: float | None = None) -> WriteAnswer:
        """Wait for the answer: the batch is durable at the level ``ack``, and visible.

        Raises:
            ClientError: The batch was refused, or its outcome is unknown.
            TimeoutError: No answer within ``timeout_s``; the batch may still be applied.
        """
        error = self.exception(timeout_s)
        if error is not None:
            raise error
        assert self._answer is not None
        return self._answer

    def exception(self, timeout_s: float | None = None) -> ClientError | None:
        """Wait as :meth:`result` does; the error, or None if the batch was accepted."""
        if not self.done():
            self._wait(None if timeout_s is None else time.monotonic() + timeout_s)
        if not self.done():
            raise TimeoutError(f"no answer within {timeout_s} s")
        return self._error

    def _wait(self, deadline: float | None) -> None:
        lifetime.check()
        answered = threading.Lock()
        answered.acquire()

        def wake(_ack: object) -> None:
            answered.release()

        self._call_when_done(wake, 0)
        try:
            while not self.done():
                wait_s = self.watch()
                if deadline is not None:
                    wait_s = min(wait_s, deadline - time.monotonic())
                    if wait_s <= 0:
                        return
                if answered.acquire(timeout=wait_s):
                    return
        finally:
            with contextlib.suppress(ValueError):  # called already
                self._callbacks.remove(wake)

    def __await__(self) -> Generator[Any, None, WriteAnswer]:
        return self._awaited().__await__()

    async def _awaited(self) -> WriteAnswer:
        """Await the result in asyncio without blocking a thread."""
        import asyncio  # slow to import, and not needed by threads

        try:
            loop = asyncio.get_running_loop()
        except RuntimeError as exc:
            raise InvalidRequest(
                "an Ack is awaited in asyncio; threads call result(), and trio has its own client"
                " in ingester.client.trio_client"
            ) from exc
        answered = asyncio.Event()

        def wake(_ack: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(answered.set)

        self.add_done_callback(wake)
        while not self.done():
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(answered.wait(), self.watch())
        return self.result(0)

    def add_done_callback(self, callback: Callable[["Ack"], object]) -> None:
        """Call ``callback(self)`` when done: immediately, or later in the writer's thread.

        Errors of the callback are logged.
        """
        if self.done():
            callback(self)
            return
        lifetime.check()
        self._call_when_done(callback, len(self._callbacks))

    def _call_when_done(self, callback: Callable[["Ack"], object], place: int) -> None:
        # The callback is listed before the second look, and :meth:`settle` comes before
        # :meth:`tell`: one of the two finds it. Taking it out of the list is atomic.
        self._callbacks.insert(place, callback)
        if self.done():
            self.tell()

    def settle(self, answer: WriteAnswer | None, error: ClientError | None) -> None:
        """Set the outcome. The writer calls :meth:`tell` afterwards."""
        self._answer, self._error = answer, error

    def tell(self) -> None:
        """Wake waiting threads and run the callbacks. The writer holds no lock meanwhile."""
        while self._callbacks:
            try:
                callback = self._callbacks.pop(0)
            except IndexError:  # another thread was faster
                return
            try:
                callback(self)
            except Exception:
                lifetime.CLIENT_LOG.exception("a callback of an acknowledgement failed")


def all_of(acks: Sequence[Ack], watch: Callable[[], float]) -> Ack:
    """One promise for several of one writer: the last answer, or the first error.

    ``duplicate`` is true if all of them are; ``ack`` is the lowest level.
    """
    whole = Ack(watch)
    missing = len(acks)
    lock = threading.Lock()

    def settled(_ack: Ack) -> None:
        nonlocal missing
        with lock:
            missing -= 1
            if missing:
                return
        error = next((error for ack in acks if (error := ack.exception(0)) is not None), None)
        if error is not None:
            whole.settle(None, error)
        else:
            answers = [ack.result(0) for ack in acks]
            duplicate = all(answer.duplicate for answer in answers)
            at_disk = any(answer.ack == "disk" for answer in answers)
            level = "disk" if at_disk else answers[-1].ack
            whole.settle(msgspec.structs.replace(answers[-1], duplicate=duplicate, ack=level), None)
        whole.tell()

    for ack in acks:
        ack.add_done_callback(settled)
    return whole
