"""The write path: from a batch that was received to its acknowledgement.

    ``streams`` opens a ``stream``, with the ``plan`` of its table and schema; the first write of a
    table makes it. At a stream's first sequence the table's manifest is made to say that all from
    it on is this daemon's, for an unknown origin too (``ingester.tables.origin_takeover``).
    ``metadata`` holds what a client says of a batch: its sequence, its checkpoint.
    ``checkpoints`` answers sources that ask for their state, or give one without rows.
    ``transform`` runs users' classes, where a table has any: a batch goes on as they make it.
    ``admission`` lets a batch in by its bytes, or refuses it; ``partition_room`` by the partitions
    that it would open.
    ``sender`` chooses one of three ways for a batch:

    small    log (as a draft) ─▶ ``coalescer``, in the thread that writes the log
             ─▶ ``metrics_sink`` ─▶ ``tracing_sink`` ─▶ log
    larger   let in ─▶ ``preparation``, passed on to the thread of the ``combiner``: checked, split,
             encoded (``operation_maker``) ─▶ the sinks
    other    ``preparation`` ─▶ let in ─▶ (the loop, if the stream has an origin) ─▶ the sinks

    sinks    ``metrics_sink`` ─▶ ``tracing_sink`` ─▶ ``dedup_sink``
             ─▶ ``wal_sink`` ─▶ `wal`: queued, written, synced ─▶ ``wal_sink`` on the loop
             ─▶ ``ingester.buffer.tree``
    ``answer`` goes back, in the order of the stream's batches.

Small ones of one schema that wait together become a coalesced batch: one record that stands for
many operations, each with its own sequence. Larger ones have no origin and are little work, and
their stream may read on meanwhile. Any other is prepared before it is admitted, and its thread
waits for that: it does the work itself if the combiner is idle or the batch is large or slow, else
the combiner's thread does. Every batch of a stream with an origin goes by way of the loop, with a
sequence or without: there ``dedup_sink`` asks ``ingester.origins`` whether a sequence is new, and
rows that files have already are left out (``covered_rows``).

Work per byte is done before the event loop, but for the merging of small chunks in a buffer and
for a repeated batch of which a part is in files, which is laid out and encoded anew there. Nothing
reaches a buffer that is not on disk, and after a refusal nothing later of its stream is applied.
``opening`` makes the parts of the room. Start reading at ``sender``, then ``stream``.
"""
