"""Compares a source with its copy: what ``ingester replicate verify`` does.

    ``source_rows`` ◀─ COPY ─ source        copy ─ query ─▶ ``copy_rows``
         │ ``source_texts``                      ``copy_texts`` │
         └──────────▶ texts ──▶ ``row_hashes`` ◀── texts ◀──────┘
                                     │ sums by ranges of keys

    ``verifying``: each table ──▶ ``comparing``: sums, keys that differ ──▶ ``confirming``
         │ ``verdicts``                                   ``copy_position`` ◀──┘ ``found_rows``

``columns`` says which columns are compared. Both sides become texts as PostgreSQL writes them, by
ways that have nothing in common with those by which the replicator reads values. A row that differs
is looked at by its key until it is equal, or is known not to be on its way: the copy has passed a
place in the source's log. Nothing in here changes the source or the copy. Start reading at
``verifying``.
"""
