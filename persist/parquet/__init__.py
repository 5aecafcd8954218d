"""Rows to Parquet files, and Parquet files to rows.

**Writing.** ``sort`` puts rows into their final order, by integers that ``sort_keys`` makes of
columns, and drops replaced ones; ``take`` picks them in that order, block by block, without a
second copy of the table. ``sparse_rows`` are rows of which each batch has only the columns it
needs. ``encode`` makes the bytes, as ``pages`` says; ``leaf_stats`` says which leaves may have
statistics, and ``stats`` makes the bounds that the manifest records. ``put`` has the file taken by
the store, and says of it what a commit has to list.

    rows ─▶ ``sort`` ─▶ ``take`` ─▶ ``encode`` ─▶ bytes, and a footer's checksum ─▶ ``put``
                                       └ ``stats``, ``leaf_stats``

**Reading.** ``footer`` checks a file's end before Arrow sees it, ``row_group_stats`` reads bounds
and sizes of a row group from it, ``decode`` reads rows, without columns that have no values.

**Rewriting a keyed partition.** ``key_overlap``: which files may have one of the touched keys, and
which new rows go with which of them. ``copy_on_write`` goes through them group after group.
``same_values`` tells which rows of two tables are the same. ``key_spans`` reads a partition's files
by spans of its key, and ``repeated_keys`` finds a key that stands twice in them.

``partitioned_rows`` holds rows by partition until a file is made of them.

No bound is tighter than the values, no row is lost, and nothing here touches a store but ``put``,
and ``key_overlap`` and ``key_spans``, which read. Start reading at ``encode``.
"""
