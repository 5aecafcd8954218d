"""Whole lives of a daemon inside the test's process, on a disk and a store that lose power.

    disk (wal.disk.Disk) ──┐
                           ├─ one supply of power: it ends at the n-th call that changes anything
    store (ObjectStore) ───┘

    life        the daemon's own parts, wired as they are, and what is done with them
    store       objects in memory, in the same machine as the disk
    model       what has to be there

Without gRPC and processes a life takes a tenth of a second, so power can be lost at every single
call. ``tests/power`` does the same to real daemons, at random moments.
"""
