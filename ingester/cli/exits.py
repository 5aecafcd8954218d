"""The end of a command: its exit code, the line that is said, and the end of the process.

    0 done    1 failed    2 wrong usage    3 the daemon cannot be reached    4 refused for now
    serve only: 5 damaged data    6 fenced    7 the stop deadline passed
    130, 143, 129: ended by SIGINT (Ctrl-C), SIGTERM, SIGHUP

    the command returns or raises ─▶ what it opened is closed ─▶ output is flushed ─▶ _exit
    a signal ─▶ an exception in the command ─▶ the same
             └▶ not ended after GRACE_S, or a second signal ─▶ half-written files go ─▶ _exit

Law of this file: the interpreter is not finalized. Threads of pyarrow and gRPC read ahead, answer
late and cannot be joined. One that wants the interpreter's lock, to read from a Python file or to
drop one, while the interpreter is finalized is ended there, in the middle of C++: the process ends
in `terminate called without an active exception` or in a fatal error, with 134 or 139 in place of
its exit code, or never. And a thread in C++ sees no signal: the main thread, waiting there for a
daemon or a pipe that says nothing, would not hear of Ctrl-C.
"""

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

from ingester.config.settings import ConfigError
from ingester.secret_texts import masked
from ingester.shown_text import escaped

DONE, FAILED, USAGE, UNREACHABLE, REFUSED = 0, 1, 2, 3, 4
INTERRUPTED = 130  # as a shell has it for SIGINT
GRACE_S = 2.0
"""The time that a command has to end in order after a signal."""
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_half_written: set[Path] = set()


class CommandFailed(Exception):
    """A failure that the command itself found: one sentence, and an exit code."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Terminated(BaseException):
    """A SIGTERM or SIGHUP in the main thread; ``exit_code`` is what a shell has for it."""

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
        # The reader of our output left (``| head``): nothing more to say, also not at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
    except Exception as exc:
        code = exit_code(exc)
        if code is None:
            raise
        say_failure(str(exc))
        sys.exit(code)


def exit_code(error: BaseException) -> int | None:
    """The exit code for an error that a user can understand; None for one of ours."""
    if isinstance(error, CommandFailed):
        return error.exit_code
    if isinstance(error, ConfigError):
        return USAGE
    if isinstance(error, OSError):
        return FAILED
    # Not imported here: whoever raised such an error has imported pyarrow already.
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
    """End the process now, with this exit code, or with 1 where its output cannot be written."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = code or FAILED  # its reader left, as ``| head`` does
    except OSError as exc:
        say_failure(f"standard output: {exc.strerror}")
        code = code or FAILED
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    remove_half_written()
    os._exit(code)


def end_on_signals() -> None:
    """Let SIGINT, SIGTERM and SIGHUP end the process from now on, by force where it goes on."""
    heard, told = os.pipe()
    os.set_blocking(told, False)
    for number in _ENDING:
        # Not where nohup has it ignored.
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


@contextlib.contextmanager
def half_written(path: Path) -> Iterator[None]:
    """Have the file at ``path``, made in the ``with`` block, removed unless it is renamed there.

    Invariant: a path is in ``_half_written`` before its file is made and until that is gone, so
    that the process leaves no such file behind, wherever a signal comes.
    """
    _half_written.add(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        _half_written.discard(path)


def remove_half_written() -> None:
    """Remove the files that are in the middle of being written: nobody goes on with them."""
    for path in list(_half_written):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _first(number: int, frame: FrameType | None) -> None:
    """Raise in the main thread, once: a further signal is the watching thread's alone.

    Raised again it would come into the midst of ending, and out of it as a traceback.
    """
    for each in _ENDING:
        if signal.getsignal(each) is _first:
            signal.signal(each, _further)
    raise KeyboardInterrupt if number == signal.SIGINT else Terminated(number)


def _further(number: int, frame: FrameType | None) -> None:
    """Do nothing: the watching thread hears of the signal."""


def _watch(heard: int) -> None:
    while (number := os.read(heard, 1)[0]) not in _ENDING:
        pass
    select.select([heard], [], [], GRACE_S)
    remove_half_written()
    os._exit(128 + number)
