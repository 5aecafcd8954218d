"""DataFrames written to tables: a write is visible as a whole or not at all, each batch once.

    ``writers`` (batch, stream) ─┬▶ ``append`` ─▶ ``data_files``
                                 │     a table without a key: files in its layout, one commit
                                 └▶ ``upsert`` ─▶ the daemon that owns the table
                                       a table with a key: staged rows, one transaction

``row_digest`` digests the rows in any order, so that a repeat with other rows is recognised.
Files that a commit may list are never deleted here. Start reading at ``writers``.
"""
