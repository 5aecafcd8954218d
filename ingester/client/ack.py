"""A promise of one batch's answer. Set once, by the writer; awaited by any number of threads."""

import threading
import time
from collections.abc import Callable

from .errors import ClientError
from .wire import Answer


class Ack:
    """What :meth:`Writer.write` returns: the answer once it is there, or the error."""

    __slots__ = ("_answer", "_callbacks", "_error", "_event", "_lock", "_watch")

    # How often a waiter looks whether the daemon has fallen silent, in seconds.
    WATCH_EVERY_S = 0.5

    def __init__(self, watch: Callable[[], None]) -> None:
        self._answer: Answer | None = None
        self._error: ClientError | None = None
        # Made by the first who waits: most answers are awaited by nobody in particular.
        self._event: threading.Event | None = None
        self._callbacks: list[Callable[[Ack], None]] = []
        self._lock = threading.Lock()
        self._watch = watch

    def done(self) -> bool:
        """Whether the answer or the error is there."""
        return self._answer is not None or self._error is not None

    def result(self, timeout_s: float | None = None) -> Answer:
        """The answer: the batch is on disk and visible. Waits for it.

        Raises:
            ClientError: the batch was refused, or its outcome is unknown.
            TimeoutError: no answer within ``timeout_s``; the batch is still on its way.
        """
        error = self.exception(timeout_s)
        if error is not None:
            raise error
        assert self._answer is not None
        return self._answer

    def exception(self, timeout_s: float | None = None) -> ClientError | None:
        """The error, or None when the batch was accepted. Waits as :meth:`result` does."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            if not self.done() and self._event is None:
                self._event = threading.Event()
            event = self._event
        while not self.done():
            remaining = self.WATCH_EVERY_S
            if deadline is not None:
                remaining = min(remaining, deadline - time.monotonic())
                if remaining <= 0:
                    raise TimeoutError(f"no answer within {timeout_s} s")
            assert event is not None
            if not event.wait(remaining):
                self._watch()
        return self._error

    def add_done_callback(self, callback: Callable[["Ack"], None]) -> None:
        """Call ``callback(self)`` when done: at once, or later in the writer's thread."""
        with self._lock:
            if not self.done():
                self._callbacks.append(callback)
                return
        callback(self)

    def settle(self, answer: Answer | None, error: ClientError | None) -> None:
        """Set the outcome. For the writer only."""
        with self._lock:
            self._answer, self._error = answer, error
            callbacks, self._callbacks = self._callbacks, []
            if self._event is not None:
                self._event.set()
        for callback in callbacks:
            callback(self)
