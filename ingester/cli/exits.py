"""The exit code that each failure of a command gives, and the line that is said about it.

0 done    1 failed    2 wrong usage    3 the daemon cannot be reached    4 refused for now
serve only: 5 damaged data    6 fenced    7 the stop deadline passed
130, 143, 129: ended by SIGINT (Ctrl-C), SIGTERM, SIGHUP
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ingester.config.settings import ConfigError

DONE, FAILED, USAGE, UNREACHABLE, REFUSED = 0, 1, 2, 3, 4
INTERRUPTED = 130  # as a shell has it for SIGINT


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


@contextmanager
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
    print(f"ingester: {' '.join(message.split())}", file=sys.stderr, flush=True)
