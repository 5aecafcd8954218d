"""Rows to Parquet files, and what the footers of files say.

    rows ─▶ ``sort`` (``take``) ─▶ ``encode`` ─▶ a file, and what the manifest records: ``stats``
    a file's ``footer`` ─▶ ``row_group_stats`` ─▶ ``key_overlap``: which files a key may be in

Start reading at ``encode``.
"""
