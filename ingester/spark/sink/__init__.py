"""DataFrames into tables, all of a write or nothing, each batch once.

    ``writers`` (batch, stream) ─┬▶ ``append`` ─▶ ``data_files`` ─▶ ``commits``
                                 │     a table without a key: files in its layout, one commit
                                 └▶ ``upsert`` ─▶ ``staging`` ─▶ the daemon that owns the table
                                       a table with a key: staged rows, one transaction
    ``columns``: which column goes where, or why not

It deletes no file that a commit may list. Start reading at ``writers``.
"""
