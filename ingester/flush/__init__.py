"""Flushing: a frozen buffer becomes files of a committed version, and its log segments are deleted.

    ``freeze_policy`` ─▶ ``ingester.buffer.tree`` freezes ─▶ ``flusher`` ─▶ ``persist.jobs``
        (the tree itself freezes a full buffer, or at the end of an epoch)
    ``flusher`` ─▶ ``worker_pool`` ─▶ ``file_writer``: sort, encode, upload
                                          └ ``persist.parquet.copy_on_write``, by primary key
                ─▶ ``ingester.tables.commit_schedule`` ─▶ ``ingester.tables.commits``
    buffers of a committed version are released ─▶ ``log_truncation``: segments are deleted

    ``log_truncation`` also commits checkpoints that no flush takes along
    ``opening``: creates the room's parts

One partition is flushed in order, different ones in parallel. A keyed partition is flushed by a
task of its own, which makes its files again if their commit is refused. ``commit_schedule`` alone
decides when a finished flush is committed, and with which others.

A buffer is never released before a committed version has its rows; failures are retried until the
store accepts the files. Nothing here writes a manifest. Start reading at ``flusher``.
"""
