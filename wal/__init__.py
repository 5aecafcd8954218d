"""A durable, ordered log of opaque records.

The log takes entries, makes them durable in groups, applies them in order, and replays them after a
restart. It never looks into a payload. One directory has one process and one writer::

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

The thread that receives a batch builds its entry and appends it::

    entry = Entry(RecordKind.OPERATION, parts, preambles=(schema,))
    entry.on_done = answer                           # on the loop, after apply, exactly once
    log.append_nowait(entry)

Small operations are appended as drafts. The writing thread makes entries of all pending drafts just
before it forms the next group: ``log.run(apply, make)``.

A `Preamble` is a record that entries refer to, such as a schema. The log writes it once per
segment, before the first entry that names it, so each segment can be read without the older ones.
`carry` returns the other records that a new segment needs. Segments can therefore be deleted as
soon as their rows are safe elsewhere: ``log.prune(keep_from)``.

On disk a log is a sequence of segments; all but the last are sealed (`wal.format` draws one)::

    00000000000000000007.wal           sealed: its last record counts the others; zeros may follow
    00000000000000000008.wal           open: records, then zeros
    00000000000000000009.wal.tmp       the next segment, being prepared
    00000000000000000006.wal.tmp       a deleted segment, kept for reuse or about to be unlinked;
                                       a start removes all .tmp files
    00000000000000000005.wal.torn      a tail that was never acknowledged, kept for inspection
    00000000000000000005.wal.damaged   the original of a repaired segment

Each record says up to which offset its segment was durable when the record was written. This
distinguishes a torn tail, which is cut and counted, from damage, which stops the start
(`wal.scan`).

Disk errors: a failed append is cut back before anything else is written; its entries are answered
with `LogFull` or `LogWriteFailed`, and the log continues. A failed sync or cut is `LogFailed`: all
waiting callers are answered, and the process must end.

An entry passes through these modules::

    ``entry``           built in the thread that received it
    ``group_writer``    appended; written by that thread or by the log's own
    ``append_queue``    queued; drafts become entries; ``commit_delay`` waits for returning callers
    ``group``           a group is formed of what fits into the open segment
    ``segments``        written and synced by ``segment``, in the bytes of ``format``
    ``group_writer``    hands it to the event loop, which applies and answers it
    ``group_commit``    runs all of this: holds, rotations, failures, the end

Files and restarts::

    ``segment``         also prepares the next segment's file before it is needed
    ``segments``        also rotates, trims and prunes
    ``recovery``        a start: reads every segment, ``scan`` judges it, torn tails are cut
    ``replay``          hands out the records that recovery found, oldest first

Entries that are also to be in an object store:

    ``route``           which tables' entries wait for the store before they are applied
    ``shipping``        the entries that wait
    ``objects``         the format of the log objects that they are written to
    ``no_disk``         a disk that keeps nothing, for a log whose entries are all shipped

``log`` is the interface of all this. ``settings`` holds options and statistics, ``errors`` the
errors by who must act. ``disk`` and ``direct_io`` are the only access to the disk; ``disk`` also
locks a data directory for one process. ``inspection`` has the operator's tools: inspect, verify,
repair. ``entry``, ``errors``, ``format``, ``group``, ``objects``, ``route``, ``scan``,
``settings`` and ``shipping`` are pure.

The log never waits for a fixed time to make groups larger, and never retries a failed sync. Start
reading at ``log``, then ``append_queue``.
"""

from wal.disk import DirectoryLock as DirectoryLock
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
from wal.errors import OutcomeUnknown as OutcomeUnknown
from wal.format import LogIdentity as LogIdentity
from wal.format import RecordKind as RecordKind
from wal.log import Log as Log
from wal.no_disk import NoDisk as NoDisk
from wal.objects import ObjectDamaged as ObjectDamaged
from wal.replay import Record as Record
from wal.replay import RecordSource as RecordSource
from wal.route import Route as Route
from wal.route import RouteState as RouteState
from wal.settings import LogSettings as LogSettings
from wal.settings import LogStatistics as LogStatistics
from wal.settings import Recovered as Recovered
from wal.settings import SegmentFacts as SegmentFacts
from wal.shipping import Shipping as Shipping
