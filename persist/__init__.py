"""From frozen rows to Parquet files that a table's manifest lists.

    rows ─▶ ``partitioning`` (which folder) ─▶ ``parquet`` (sorted, encoded) ─▶ ``store`` (put once)
                                                                                  │
    readers ◀── ``predicate`` (what cannot match is not read) ◀── ``manifest`` ◀──┘ one commit

``manifest`` is the list of a table's files in versions that only one writer can make; ``store``
is whole objects under names, created at most once; ``table`` is what a table is; ``jobs`` is in
which order work is done, and how many bytes of it at once; ``exports`` are lists of files for
readers that do not know the manifest. ``backoff`` says when to try again, ``prefetch`` makes one
item while another is used.

It knows neither log nor daemon, and but for ``jobs`` it runs on Spark's executors too. Start
reading at :mod:`persist.manifest`.
"""
