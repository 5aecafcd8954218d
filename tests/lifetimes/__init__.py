"""Whole lives of a daemon inside the test's process, on a disk and a store that lose power.

    disk (wal.disk.Disk) ──┐
                           ├─ one power supply: it fails at the n-th call that changes anything
    store (ObjectStore) ───┘

    life        the daemon's own parts, wired as in the product, and the steps of a life
    store       objects in memory, on the same machine as the disk
    model       the expected rows

Without gRPC and processes a life takes a tenth of a second, so power can fail at every single
call. ``tests/power`` does the same to real daemons, at random moments.
"""
