"""A frozen buffer becomes files of a committed version, and its rows leave the log.

    ``freeze_policy`` ─▶ ``flusher`` ─▶ ``worker_pool`` ─▶ ``file_writer`` ─▶ the table's gate
                                                               └ ``copy_on_write``, by primary key
    a committed version, its buffers released ─▶ ``log_truncation``

The buffer tree hands out a job for each frozen buffer. One partition is flushed in order, different
ones at the same time. When a finished flush is committed, and with whom, is decided in one place,
:mod:`ingester.tables.commit_schedule`.

A buffer is never let go before a committed version has its rows; what fails is tried again until
the store takes it. Nothing here writes a manifest. Start reading at ``flusher``.
"""
