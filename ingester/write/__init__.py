"""The write path: from a batch that was received to its acknowledgement.

    ``streams`` opens a ``stream``, with the ``plan`` of its table and schema; the first write of a
    table makes it, and an origin is taken over from whoever had it (``ingester.tables``).
    ``metadata`` holds what a client says of a batch: its sequence, its checkpoint.
    ``admission`` lets a batch in by its bytes, or refuses it.
    ``sender`` chooses one of three ways for a batch:

    small    log (as a draft) ─▶ ``coalescer``: one operation of all that wait, in the thread that
                                 writes the log ─▶ ``metrics_sink`` ─▶ ``tracing_sink`` ─▶ log
    larger   ``preparation``, by the thread of the ``combiner``: checked, split, encoded
             (``operation_maker``) ─▶ the sinks
    other    ``preparation``, in its own thread; what has a sequence goes by way of the loop
             ─▶ the sinks

    sinks    ``metrics_sink`` ─▶ ``tracing_sink`` ─▶ ``dedup_sink`` (``covered_rows``)
             ─▶ ``wal_sink`` ─▶ `wal`: queued, written, synced ─▶ ``wal_sink`` on the loop
             ─▶ ``ingester.buffer.tree``
    ``answer`` goes back, in the order of the stream's batches.

Everything that costs per byte is done before the event loop. Nothing reaches a buffer that is not
on disk, and after a refusal nothing later of its stream is applied. Start reading at ``sender``,
then ``stream``.
"""
