"""Rows to Parquet files, and Parquet files to rows.

**Writing.** `sparse_rows` holds rows whose batches each have only the columns that they need, also
by partition until a file is made of them. `sort` orders rows by the integers that `sort_keys` makes
of columns, drops replaced rows, and picks rows in that order block by block. `encode` makes the
bytes, with the numbers of columns from `field_ids`. `stats` computes the bounds that the manifest
records, and decides which leaves get statistics. `put` stores the file and returns the entry that a
commit lists.

    rows ─▶ `sort` ─▶ `encode` ─▶ bytes and the footer's checksum ─▶ `put`
                         └ `stats`

**Reading.** `reading` checks a file's footer before Arrow reads it, returns bounds and sizes of row
groups, and decodes rows without the columns that have no values.

**Rewriting a keyed partition.** `key_overlap` finds the files that may have one of the touched
keys, and assigns new rows to them. `copy_on_write` rewrites them group by group. `key_spans` reads
a partition's files by ranges of the key, and finds keys that occur twice.

No bound is tighter than the values, and no row is lost. Only `put`, `key_overlap` and `key_spans`
touch a store. Start reading at `encode`.
"""
