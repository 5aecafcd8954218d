"""Child processes that end when this program ends for any reason.

A child communicates through one pipe and exits when the pipe closes. It is spawned, not forked,
because gRPC does not survive a fork. Tests fork it from a process that has not used gRPC.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from typing import Any, ClassVar


class ChildFailed(Exception):
    """Raised when a child fails."""


class Child:
    """A process that runs ``main(pipe, *args)``; ``main`` is a module-level function."""

    context: ClassVar[SpawnContext | ForkServerContext] = multiprocessing.get_context("spawn")

    def __init__(self, main: Callable[..., None], *args: object) -> None:
        self._pipe, its_end = self.context.Pipe()
        self._process = self.context.Process(target=main, args=(its_end, *args), daemon=True)
        self._process.start()
        its_end.close()

    @property
    def pid(self) -> int:
        """The process id."""
        pid = self._process.pid
        assert pid is not None
        return pid

    def send(self, message: object) -> None:
        """Send a command."""
        self._pipe.send(message)

    def receive(self) -> Any:
        """Wait for the next answer.

        Raises:
            ChildFailed: The child answered with an exception, or is gone.
        """
        try:
            answer = self._pipe.recv()
        except EOFError as exc:
            raise ChildFailed(f"child {self.pid} ended without an answer") from exc
        if isinstance(answer, BaseException):
            raise ChildFailed(f"child {self.pid}: {answer!r}") from answer
        return answer

    def end(self) -> None:
        """Kill it and wait until it is gone."""
        self._process.kill()
        self._process.join()
        self._process.close()
        self._pipe.close()


def answer_commands(pipe: Connection, act: Callable[[Any], Any]) -> None:
    """In a child: answer each message with what ``act`` returns or raises."""
    while True:
        try:
            message = pipe.recv()
        except EOFError:
            return
        try:
            answer = act(message)
        except Exception as exc:
            # As text: an exception of a C++ extension may not survive pickling.
            answer = RuntimeError(f"{type(exc).__name__}: {exc}")
        pipe.send(answer)


def exit_with_parent(pipe: Connection) -> None:
    """In a child whose main thread serves: end the process when the pipe closes."""

    def watch() -> None:
        try:
            pipe.recv()
        except EOFError:
            os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
