"""Background work after a table's commits.

    ``version_follower`` ─▶ a manifest snapshot, when the changelogs outweigh it
                         ─▶ ``_spark_metadata``: the list of files where Spark looks for one
    ``garbage_collector``: deletes old versions and unlisted files
    ``opening``: creates the room's parts

Nothing here delays a commit, and no row depends on it. Start reading at ``version_follower``.
"""
