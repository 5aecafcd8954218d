"""The command line: ``ingester serve | write | query | …``.

Start-up imports neither pyarrow nor trio, so that ``--help`` is quick.

Facts go to standard output, everything else to standard error. A failure is one clear line and an
exit code (see :mod:`ingester.cli.exits`), never a traceback.
"""

import sys
from collections.abc import Sequence

from ingester.allocator import use_huge_pages


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command line (default: this process's) and leave the process with its exit code."""
    if arguments is None and sys.argv[1:2] == ["serve"]:
        # First of all: the program starts anew here.
        use_huge_pages()
    from .app import app
    from .exits import ended

    with ended():
        app(arguments, prog_name="ingester")


__all__ = ["main"]
