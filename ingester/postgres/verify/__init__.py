"""Compares a source with its copy: what ``ingester replicate verify`` does.

    ``source_rows`` ◀─ COPY ─ source        copy ─ query ─▶ ``copy_rows``
         │ ``source_texts``                      ``copy_texts`` │
         └──────────▶ texts ──▶ ``row_hashes`` ◀── texts ◀──────┘
                                     │ sums by ranges of keys

Both sides become texts as PostgreSQL writes them, by ways that have nothing in common with those by
which the replicator reads values. ``found_rows`` has rows by their keys, and ``verdicts`` what is
told of a table. Nothing in here changes the source or a row of the copy. Start reading at
``row_hashes``.
"""
