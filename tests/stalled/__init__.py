"""Readers that stop reading: what they cost the daemon, and what they get when they go on.

    python -m tests.stalled [--readers N] [--megabytes N] [--processes N]
                            [--at-once]

A table is half in buffers and half in files. Many readers open it, read one part each and stop.
While they stand still, writers write on and the buffers are persisted under them. Measured: how far
the daemon's resident memory grows, how fast writers go on, and whether a reader that goes on gets
exactly the rest of its snapshot.

    rows        the table's rows, from their numbers
    reader      a process of readers          writer      a process of writers
    memory      the daemon's resident memory, by phase
    run         the phases, one after another
"""
