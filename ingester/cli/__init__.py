"""The command line: ``ingester serve | write | query | …``, for people and for scripts.

    ``main`` ──▶ ``app``: commands and options ──▶ the module of a command ──▶ ``printing``
                    ``exits``: exit codes, error lines, signals, the process's end

Options are declared in ``app``, ``data_commands``, ``daemon_commands``, ``push_commands``,
``replication_commands``, ``sql_commands`` and ``offline_commands``; ``command_options`` has the
shared ones. None of these imports pyarrow or trio, so ``--help`` is fast. A command runs in a
module that is imported when it is called:

    ``serve``                                serve, config, demo
    ``tables``, ``write``                    tables and rows; ``row_numbers`` makes it repeatable
    ``query``, ``tail``                      rows; new rows as they arrive
    ``sql``, ``sql_answers``, ``sql_prompt`` SQL statements, their answers, the prompt
    ``status``                               status of one or several daemons
    ``status_watch``, ``status_screen``      a status that refreshes, on a terminal or in a pipe
    ``daemon_actions``                       flush; stop accepting writes; change the log level
    ``wal_tools``, ``manifest_tools``        the log of a stopped daemon; tables in a store
    ``store_log_tools``                      the log of a lost machine, in the store
    ``publish``                              tables as Iceberg and Delta
    ``compaction``                           small files of tables merged, in this process
    ``replicate``                            replication from PostgreSQL, and its dry run
    ``replication_status``                   replicators and their tables
    ``replicate_verify``                     a source compared with its copy
    ``tokens``                               the token file of a daemon
    ``follow``                               local copies of tables
    ``controller``                           leads pushes
    ``pushes``                               status and end of pushes; ``push_rows``: as tables

``input`` reads files and pipes, and ``output`` writes answers. ``connecting`` creates the clients.
``metrics_server`` serves the metrics of long-running commands.

Facts go to standard output, everything else to standard error. A failure is one line and an exit
code, never a traceback. This room has no rules of the daemon and reaches its data only through
``ingester.client``, or offline where no daemon runs. Start reading at ``app``.
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
    """Run this process's command line, then end the process with its exit code."""
    if sys.argv[1:2] == ["serve"]:
        # Must come first: this may re-execute the program.
        lay_out_heap()
    # The process ends inside the handlers, before the exception is released: it may hold a reader
    # whose destructor waits for a thread that is blocked on a pipe.
    try:
        run(sys.argv[1:])
    except SystemExit as exc:
        _end(exc.code if isinstance(exc.code, int) else int(exc.code is not None))
    except KeyboardInterrupt:  # during startup
        _end(128 + signal.SIGINT)
    except BaseException:
        sys.stderr.write(escaped_lines(masked(traceback.format_exc())))
        _end(1)
    _end(0)


def _end(code: int) -> NoReturn:
    from .exits import end_process

    end_process(code)


def run(arguments: Sequence[str]) -> None:
    """Run one command line. Always raises SystemExit, with the exit code."""
    from .app import app
    from .exits import ended

    with ended():
        app(arguments, prog_name="ingester")


__all__ = ["main", "run"]
