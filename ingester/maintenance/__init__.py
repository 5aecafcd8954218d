"""What is done for a table's version after its commit, in the background.

    ``version_follower`` ─┬▶ ``manifest_snapshots``: a snapshot when the changelogs outweigh it
                          └▶ ``spark_metadata``: the list of files where Spark looks for one
    ``garbage_collector``: old versions and unlisted files go

Nothing here stands in the way of a commit, and no row depends on it. ``opening`` makes the parts of
the room. Start reading at ``version_follower``.
"""
