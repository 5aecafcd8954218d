"""How a command ends: exit code, error line, signals, and the end of the process.

    0 done    1 failed    2 wrong usage    3 the daemon cannot be reached    4 refused for now
    serve only: 5 damaged data    6 fenced    7 the stop deadline passed
    130, 143, 129: ended by SIGINT (Ctrl-C), SIGTERM, SIGHUP

    the command returns or raises ─▶ its resources are closed ─▶ output is flushed ─▶ _exit
    a signal ─▶ an exception in the command ─▶ the same
             └▶ still running after GRACE_S, or a second signal ─▶ partial files removed ─▶ _exit

The interpreter is never finalized. Threads of pyarrow and gRPC read ahead, answer late and cannot
be joined. A thread that takes the interpreter's lock during finalization, to read from a Python
file or to release one, is ended there, in the middle of C++. The process then hangs, or aborts
with 134 or 139 instead of its exit code. In addition the main thread sees no signal while it waits
in C++ for a silent daemon or pipe, so a second thread watches for signals
(``tests/cli/test_signals_and_exit.py``).
"""

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from ingester.config.settings import ConfigError
from ingester.secret_texts import masked
from ingester.shown_text import escaped

DONE, FAILED, USAGE, UNREACHABLE, REFUSED = 0, 1, 2, 3, 4
INTERRUPTED = 130  # as a shell reports SIGINT
GRACE_S = 2.0
"""Time that a command has to end cleanly after a signal."""
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_half_written: set[Path] = set()


class CommandFailed(Exception):
    """A failure that the command itself detected: one sentence and an exit code."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Terminated(BaseException):
    """SIGTERM or SIGHUP, raised in the main thread; ``exit_code`` is as a shell reports it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@contextlib.contextmanager
def ended() -> Iterator[None]:
    """Turn what a command raises into one line on standard error and the exit code."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Terminated as exc:
        sys.exit(exc.exit_code)
    except BrokenPipeError:
        # The reader of our output is gone (``| head``): write nothing more, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
    except Exception as exc:
        code = exit_code(exc)
        if code is None:
            raise
        say_failure(str(exc))
        sys.exit(code)


def exit_code(error: BaseException) -> int | None:
    """The exit code for an expected error; None for a bug."""
    if isinstance(error, CommandFailed):
        return error.exit_code
    if isinstance(error, ConfigError):
        return USAGE
    if isinstance(error, OSError):
        return FAILED
    # Not imported here, to keep pyarrow out: the code that raised it has imported it.
    errors = sys.modules.get("ingester.client.errors")
    if errors is not None and isinstance(error, errors.ClientError):
        if isinstance(error, errors.Unreachable):
            return UNREACHABLE
        return REFUSED if isinstance(error, errors.Unavailable) else FAILED
    return None


def say_failure(message: str) -> None:
    """Print one line on standard error."""
    line = escaped(masked(" ".join(message.split())))
    print(f"ingester: {line}", file=sys.stderr, flush=True)


def end_process(code: int) -> NoReturn:
    """End the process with this exit code, or with 1 if its output cannot be written."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = code or FAILED  # the reader is gone, as after ``| head``
    except OSError as exc:
        say_failure(f"standard output: {exc.strerror}")
        code = code or FAILED
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    remove_half_written()
    os._exit(code)


def end_on_signals() -> None:
    """Let SIGINT, SIGTERM and SIGHUP end the process: by an exception, then by force."""
    heard, told = os.pipe()
    os.set_blocking(told, False)
    for number in _ENDING:
        # nohup sets SIGHUP to be ignored.
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _first)
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(heard,), name="ingester-signals", daemon=True).start()


def stopped_by_signals() -> threading.Event:
    """An event that the first signal sets; a second one ends the process at once."""
    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        if stopped.is_set():
            os._exit(128 + number)
        stopped.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    return stopped


def signals_so_far() -> Sequence[int]:
    """The SIGINTs and SIGTERMs that arrive from now on, which end nothing by themselves."""
    caught: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: caught.append(number))
    return caught


@contextlib.contextmanager
def half_written(path: Path) -> Iterator[None]:
    """Remove the file at ``path`` at the end of the block, unless it was renamed meanwhile.

    Invariant: a path is in ``_half_written`` from before its file is created until after it is
    gone, so no such file is left behind, whenever a signal arrives.
    """
    _half_written.add(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        _half_written.discard(path)


def remove_half_written() -> None:
    """Remove files that are still being written."""
    for path in list(_half_written):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _first(number: int, frame: FrameType | None) -> None:
    """Raise in the main thread, once. Further signals are left to the watching thread.

    A second exception could hit the cleanup of the first and end in a traceback.
    """
    for each in _ENDING:
        if signal.getsignal(each) is _first:
            signal.signal(each, _further)
    raise KeyboardInterrupt if number == signal.SIGINT else Terminated(number)


def _further(number: int, frame: FrameType | None) -> None:
    """No-op: the watching thread receives the signal through the wakeup file descriptor."""


def _watch(heard: int) -> None:
    while (number := os.read(heard, 1)[0]) not in _ENDING:
        pass
    select.select([heard], [], [], GRACE_S)
    remove_half_written()
    os._exit(128 + number)
