"""Compares a source with its copy: ``ingester replicate verify``.

    ``source_rows`` ◀─ COPY ─ source        copy ─ query ─▶ ``copy_rows``
         └──────────▶ ``compared_texts`` ──▶ ``row_hashes`` ◀── ``compared_texts`` ◀──┘
                                                  │ sums by ranges of keys
    ``verifying``: each table ──▶ ``comparing``: sums, then keys that differ ──▶ ``differences``

Both sides become texts as PostgreSQL writes them, by code that shares nothing with the code by
which the replicator reads values. A row that differs is read again by its key until it is equal, or
until the copy has passed the position at which the source had another row. The room changes neither
side. Start reading at ``verifying``.
"""
