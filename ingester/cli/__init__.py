"""The command line: ``ingester serve | write | query | …``, for people and for scripts.

    ``main`` ──▶ ``app``: commands and options ──▶ the module of a command ──▶ ``printing``
                    ``exits``: what failed, in one line and an exit code; the process's end

The options of most commands stand in ``app``, those of the others in ``write_commands``,
``daemon_commands``, ``follow_commands``, ``push_commands``, ``replication_commands``,
``token_commands`` and ``manifest_commands``, and what several share in ``command_options``. None of
these imports pyarrow or trio, so that ``--help`` is quick. What a command does is in a module that
is imported when it runs:

    ``serve``                            a daemon of its own, its settings, the demo
    ``create``, ``write``                tables and rows; ``row_numbers`` repeats a file exactly
    ``status_of_many``                   a line for each of several daemons
    ``status_watch``, ``status_screen``  a status anew and anew, on a terminal or in a pipe
    ``drain``                            a daemon gives up its writes
    ``query``, ``status``, ``checkpoints``   what a daemon answers; ``push_rows``: its pushes
    ``tail``                             new rows as they come, until a signal
    ``log_level``                        which events a daemon's log has
    ``wal_tools``                        the log of a daemon that is stopped
    ``manifest_tools``, ``manifest_facts``   tables in a store, without a daemon
    ``replicate``                        follow another database's changes, until a signal;
                                         ``replicate_check``: a dry run
    ``replication_status``               the replicators and their tables
    ``replicate_verify``                 compare a source with its copy
    ``tokens``                           the file of tokens that a daemon lets callers in by
    ``follow``, ``follow_metrics``       copies of tables, until a signal
    ``controller``                       pushes that nobody leads, until a signal
    ``pushes``, ``push_requests``        where pushes stand, and their end; ``push_facts``: what is
                                         told of one; ``push_place``: where they are kept

``input`` reads files and pipes, ``output`` writes answers, and ``time_texts`` says times for both.
``connecting`` makes every client of a daemon: its address, whom it trusts, its token.
``metrics_server`` is asked for metrics of those that run for long.

Facts go to standard output, everything else to standard error. A failure is one clear line and an
exit code, never a traceback. This room holds no rule of the daemon's and reaches its data only as
any client does, through ``ingester.client``, or where no daemon runs. Start reading at ``app``.
"""

import signal
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from ingester.memory.heap_settings import lay_out_heap
from ingester.secret_texts import masked
from ingester.shown_text import escaped_lines


def main() -> NoReturn:
    """Run this process's command line and end the process with its exit code."""
    if sys.argv[1:2] == ["serve"]:
        # First of all: the program starts anew here.
        lay_out_heap()
    # Ended inside the handlers: what an exception holds, such as a reader whose thread waits for a
    # pipe, is not dropped before. That would wait, too.
    try:
        run(sys.argv[1:])
    except SystemExit as exc:
        _end(exc.code if isinstance(exc.code, int) else int(exc.code is not None))
    except KeyboardInterrupt:  # while it was starting
        _end(128 + signal.SIGINT)
    except BaseException:
        sys.stderr.write(escaped_lines(masked(traceback.format_exc())))
        _end(1)
    _end(0)


def _end(code: int) -> NoReturn:
    from .exits import end_process

    end_process(code)


def run(arguments: Sequence[str]) -> None:
    """Run one command line. Raises SystemExit with its exit code."""
    from .app import app
    from .exits import ended

    with ended():
        app(arguments, prog_name="ingester")


__all__ = ["main", "run"]
