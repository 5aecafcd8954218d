"""In which order persists are done, and how many bytes of them at once.

    ``placement`` (a partition always has the same worker) ─▶ ``queue`` ─▶ ``byte_budget``

It imports trio: executors do not need it. Start reading at ``queue``.
"""
