"""The command line: ``ingester serve | write | query | …``.

Start-up imports neither pyarrow nor trio, so that ``--help`` is quick.

Facts go to standard output, everything else to standard error. A failure is one clear line and an
exit code (see :mod:`ingester.cli.exits`), never a traceback.
"""

import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from ingester.memory.allocator import use_huge_pages


def main() -> NoReturn:
    """Run this process's command line and end the process with its exit code."""
    if sys.argv[1:2] == ["serve"]:
        # First of all: the program starts anew here.
        use_huge_pages()
    # Ended inside the handlers: what an exception holds, such as a reader whose thread waits for a
    # pipe, is not dropped before. That would wait, too.
    try:
        run(sys.argv[1:])
    except SystemExit as exc:
        _end(exc.code if isinstance(exc.code, int) else int(exc.code is not None))
    except KeyboardInterrupt:  # while it was starting
        _end(128 + signal.SIGINT)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        _end(1)
    _end(0)


def _end(code: int) -> NoReturn:
    from .ending import end_process

    end_process(code)


def run(arguments: Sequence[str]) -> None:
    """Run one command line. Raises SystemExit with its exit code."""
    from .app import app
    from .exits import ended

    with ended():
        app(arguments, prog_name="ingester")


__all__ = ["main", "run"]
