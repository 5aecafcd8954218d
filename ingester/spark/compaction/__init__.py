"""A table's files rewritten with Spark, beside its daemons.

    ``api`` ─▶ ``plan`` (groups of files, the report) ─▶ ``run`` (rounds, waves, tasks, commits)

A group of files is replaced in one version or not at all. No daemon is contacted. Start reading at
``run``.
"""
