"""Stalled readers: their cost for the daemon, and their rows after they resume.

    python -m tests.stalled [--readers N] [--megabytes N] [--processes N]
                            [--at-once]

A table is half in buffers and half in files. Many readers open it, read one part each and stop.
Meanwhile writers continue and the buffers are flushed. The program measures the growth of the
daemon's resident memory and the writers' rate, and checks that a resumed reader gets exactly the
rest of its snapshot.

    rows        the table's rows, generated from their numbers
    reader      a process of readers          writer      a process of writers
    memory      the daemon's resident memory, by phase
    run         the phases, one after another
"""
