"""A real daemon on a real file system that loses unsynced data at random power cuts.

    python -m tests.power [--lives N] [--seed N] [--lives-to-catch N]

The daemon's data directory and its object store lie on a small FUSE file system. It tracks what
every fsync has made durable. A power cut loses a random part of everything else: sectors of
files, and the most recent changes of folders. After each cut the daemon restarts on the
remaining data; every acknowledged row must exist once, and no unsent row.

    forgetful   the file system            mounted     its process
    lives       one life after another     planted     daemons with a fault that must be caught
    racing      two daemons, one table     rows        what is written and counted

A fault that no power cut reveals is planted in two daemons that commit to one table: a missing
check that no other daemon has made the version.

The tests need ``/dev/fuse``, the right to mount, and Debian's ``fuse3`` or an equivalent.
"""
