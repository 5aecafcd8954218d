"""A durable, ordered log of opaque records.

The log takes entries, makes them durable in groups, hands them on in order, and gives them back
after a restart. It knows nothing of what they mean. One folder, one process, one writing task::

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

Small operations are appended as drafts. What waits is made into entries by the log's own thread,
all together, just before it forms the next group: ``log.run(apply, make)``.

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

Files, from the bytes up: `format`, `scan` and `group` are pure; `disk`, `segment`, `reading`,
`recovery` block; `spares`, `segments`, `commit`, `replay` and `log` live on trio's loop;
`append_queue` stands between the threads that append and the one that writes, `waiting` is its
line; `handover` stands between the one that writes and the loop.
`inspection` and `repair` are an operator's tools.
"""

from wal.disk import Disk, OsDisk
from wal.entry import Draft, Entry, OrderedSession, Preamble
from wal.errors import (
    DirectoryLocked,
    LogClosed,
    LogDamaged,
    LogError,
    LogFailed,
    LogFull,
    LogTooNew,
    LogWriteFailed,
)
from wal.format import LogIdentity, RecordKind
from wal.lock import DirectoryLock
from wal.log import Log
from wal.replay import Record
from wal.settings import LogSettings, LogStatistics, Recovered, SegmentFacts

__all__ = [
    "DirectoryLock",
    "DirectoryLocked",
    "Disk",
    "Draft",
    "Entry",
    "Log",
    "LogClosed",
    "LogDamaged",
    "LogError",
    "LogFailed",
    "LogFull",
    "LogIdentity",
    "LogSettings",
    "LogStatistics",
    "LogTooNew",
    "LogWriteFailed",
    "OrderedSession",
    "OsDisk",
    "Preamble",
    "Record",
    "RecordKind",
    "Recovered",
    "SegmentFacts",
]
