"""A real file system that loses what was not synced, under a real daemon, and power cut at random.

    python -m tests.power [--lives N] [--seed N] [--lives-to-catch N]

The daemon's data directory and its object store lie on a small FUSE file system. It remembers what
every fsync has made durable; when the power is cut, of everything else a random part is lost: bytes
of files by the sector, names of folders from some moment on. After each cut the daemon starts again
on what is left, and every acknowledged row has to be there once, with nothing that was not sent.

    forgetful   the file system            mounted     its process
    lives       one life after another     planted     daemons with a fault, to be caught
    racing      two daemons, one table     rows        what is written and counted

Faults that no power cut brings to light are planted in two daemons that commit to one table: the
check that a version is nobody else's.

It needs ``/dev/fuse``, the right to mount, and Debian's ``fuse3`` or its like.
"""
