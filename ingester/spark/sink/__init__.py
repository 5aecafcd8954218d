"""DataFrames into tables, all of a write or nothing, each batch once.

    ``append`` ─▶ ``data_files`` ─▶ ``commits``          a table without a key: files, one commit
    ``upsert`` ─▶ ``staging`` ─▶ the table's daemon       a keyed table: rows, one transaction
    ``columns``: which column goes where

Start reading at ``append``.
"""
