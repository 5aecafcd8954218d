"""A durable, ordered log of opaque records.

The log takes entries, makes them durable in groups, hands them on in order, and gives them back
after a restart. It knows nothing of what they mean. One folder, one process, one writer at a time::

    with DirectoryLock(data_dir):
        log = Log(data_dir / "wal", LogSettings(), carry=origins.to_records)
        recovered = await log.recover()              # checks everything, cuts a torn tail
        async for records in log.replay():           # oldest first, bounded memory
            ...
        await log.start(LogIdentity(...), first_seq=recovered.last_seq + 1)
        async with trio.open_nursery() as nursery:
            await nursery.start(log.run, apply)      # apply(entries): after the sync, in order
            ...
            await log.close()                        # seals: the next start finds no tail

An entry is built and appended by the thread that received it::

    entry = Entry(RecordKind.OPERATION, parts, preambles=(schema,))
    entry.on_done = answer                           # on the loop, after apply, exactly once
    log.append_nowait(entry)

Small operations are appended as drafts. The writing thread makes entries of all pending ones just
before it forms the next group: ``log.run(apply, make)``.

A `Preamble` is a record that entries refer to, such as a schema. The log writes it once per
segment, before the first entry that names it, so that each segment can be read without the ones
before it. What older segments remember and a new one needs besides comes from `carry`. So
segments can go as soon as what they hold is safe elsewhere: ``log.prune(keep_from)``.

On disk, a log is a row of segments, all sealed but the last (`wal.format` draws one)::

    00000000000000000007.wal           sealed: its final record counts the others; zeros may follow
    00000000000000000008.wal           open: records, then zeros
    00000000000000000009.wal.tmp       the next one in the making
    00000000000000000006.wal.tmp       one that nobody needs any more, on its way out, or kept to
                                       become the next one; a start removes them all
    00000000000000000005.wal.torn      a tail that was never acknowledged, kept for a look
    00000000000000000005.wal.damaged   what a repair moved aside

Each record says up to where its segment was durable when it was written. That is what tells a
torn tail, which is cut and counted, from damage, which stops the start (`wal.scan`).

When the disk fails: an append that fails is cut back before anything else is written, its
entries are answered with `LogFull` or `LogWriteFailed`, and the log goes on; a sync or a cut that
fails is the end, `LogFailed`, after everyone who waits has been answered.

The way of an entry through the package, and of a log through its life::

    ``entry``           built in the thread that received it
    ``group_writer``    appended here; written by that thread, or by the log's own
    ``append_queue``    what is queued, and who writes; ``pending`` keeps its order, drafts are made
                        into entries; ``commit_delay`` lets callers of the last group come back
    ``group``           the next group is formed of what fits into the open segment
    ``segments``        written and synced there, by ``segment``, in the bytes of ``format``
    ``apply_queue``     from the writer to the loop: applied, answered
    ``in_flight``       every group is answered, also one that fails
    ``group_commit``    between two groups: ``rotation``, and the end of the run

    ``preallocation``   the next segment's file is ready before it is needed
    ``sealed_segments`` trimmed, pruned
    ``recovery``        a start: ``file_source`` reads, ``scan`` judges, torn tails are cut
    ``replay``          what was found, oldest first
    ``lock``            one process per data directory

``log`` is the face of all this; ``settings`` says what can be turned and told, ``errors`` who has
to act. ``disk`` and ``direct_io`` are the only way to the disk. ``inspection`` and ``repair`` are
an operator's tools. ``entry``, ``errors``, ``format``, ``group``, ``scan`` and ``settings`` are
pure.

It never looks into a payload, never waits for a fixed time to make groups larger, and never tries a
failed sync again. Start reading at ``log``, then ``append_queue``.
"""

from wal.disk import Disk as Disk
from wal.entry import Draft as Draft
from wal.entry import Entry as Entry
from wal.entry import OrderedSession as OrderedSession
from wal.entry import Preamble as Preamble
from wal.errors import DirectoryLocked as DirectoryLocked
from wal.errors import LogClosed as LogClosed
from wal.errors import LogDamaged as LogDamaged
from wal.errors import LogError as LogError
from wal.errors import LogFailed as LogFailed
from wal.errors import LogFull as LogFull
from wal.errors import LogTooNew as LogTooNew
from wal.errors import LogWriteFailed as LogWriteFailed
from wal.format import LogIdentity as LogIdentity
from wal.format import RecordKind as RecordKind
from wal.lock import DirectoryLock as DirectoryLock
from wal.log import Log as Log
from wal.replay import Record as Record
from wal.settings import LogSettings as LogSettings
from wal.settings import LogStatistics as LogStatistics
from wal.settings import Recovered as Recovered
from wal.settings import SegmentFacts as SegmentFacts
