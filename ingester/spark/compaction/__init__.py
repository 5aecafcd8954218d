"""A table's files made anew on Spark, beside its daemons.

    ``api`` ─▶ ``plan`` (which files become which) ─▶ ``run`` (rounds, waves, commits)
                                                        └▶ ``task`` on executors
    ``report``: what was done, and the sizes that it goes by

All of a group of files is replaced in one version, or nothing is. It touches no daemon. Start
reading at ``run``.
"""
