"""The write path: from a batch that was received to its acknowledgement.

    ``streams`` opens a ``stream`` with the ``plan`` of its table and schema.
    ``admission`` lets a batch in by its bytes, or refuses it.
    ``metadata`` holds what a client says of a batch: its sequence, its checkpoint.
    ``sender`` chooses the way of a batch:
    small    ``coalescer`` makes one operation of all that wait for the log, in the log's thread
    larger   ``preparation`` ─▶ ``combiner`` ─▶ ``operation_maker``: checked, split, encoded
    then     ``metrics_sink`` ─▶ ``tracing_sink`` ─▶ ``dedup_sink`` (``covered_rows``)
                              ─▶ ``wal_sink`` ─▶ the buffers
    ``answer`` goes back, in the order of the stream's batches.

Everything that costs per byte is done before the event loop. Nothing reaches a buffer that is not
on disk, and after a refusal nothing later of its stream is applied. Start reading at ``stream``.
"""
