"""A frozen buffer becomes files of a committed version.

    ``freeze_policy`` ─▶ ``flusher`` ─▶ ``worker_pool`` ─▶ ``file_writer`` ─▶ the table's commits
                            │                                └ ``copy_on_write`` for a keyed table
                            └ ``commit_linger``: who goes into a version together

One partition is flushed in order, different ones at the same time. A buffer is never let go
before a committed version has its rows; what fails is tried again until the store takes it. Start
reading at ``flusher``.
"""
