"""A table's files rewritten with Spark, beside its daemons.

    ``api`` ─▶ ``persist.compaction`` (groups, rounds, commits) ─▶ ``runner``: a Spark task each

A group of files is replaced in one version or not at all. No daemon is contacted. Start reading at
``api``.
"""
