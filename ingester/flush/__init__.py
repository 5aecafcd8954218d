"""A frozen buffer becomes files of a committed version, and its rows leave the log.

    ``freeze_policy`` ─▶ ``ingester.buffer.tree`` freezes ─▶ ``flusher`` ─▶ ``persist.jobs``
        (or the tree itself: a buffer is full, an epoch ends)
    ``flusher`` ─▶ ``worker_pool`` ─▶ ``file_writer``: sorted, encoded, in the store
                                          └ ``persist.parquet.copy_on_write``, by primary key
                ─▶ ``ingester.tables.commit_schedule`` ─▶ ``ingester.tables.commits``
    the buffers of a committed version are let go ─▶ ``log_truncation``: segments are deleted

    ``checkpoint_committer``: states of sources that no flush takes along
    ``flush_counts``: what was flushed and what failed, for the status and the metrics
    ``opening``: makes the parts of the room

The buffer tree hands out a job for each frozen buffer. One partition is flushed in order, different
ones at the same time. A keyed partition is flushed by a task of its own, whose files are made anew
where its commit is refused. When a finished flush is committed, and with whom, is decided in one
place, :mod:`ingester.tables.commit_schedule`.

A buffer is never let go before a committed version has its rows; what fails is tried again until
the store takes it. Nothing here writes a manifest. Start reading at ``flusher``.
"""
