"""Frozen rows become Parquet files that a table's manifest lists; readers get rows from them.

**Writing.** `partitioning` splits rows by partition before they are buffered; its specs also name
the folders. A frozen buffer waits in `jobs`: a fixed number of workers, each partition always on
the same one, within a shared budget of bytes. `parquet` sorts the rows, drops those that a later
row of the same primary key replaced, and encodes them with bounds of their columns. `store` puts
each file once, under a unique name. No reader sees it before the commit.

**Commit.** `manifest` is the list of a table's files, in versions. A version is a changelog of
actions and a commit that exactly one of any number of writers can create. A reader holds one
version and sees its files, whatever is committed or deleted meanwhile. The manifest also records up
to which sequence of which log a partition is in files, which process writes under which epoch, and
what each client has written. A restart therefore replays nothing twice, and a replaced process
cannot commit.

**Compaction.** `compaction` replaces small files of a table by few sorted ones, while writers
commit.

**Table versions.** `switching` makes another version of a whole table current, and rolls back,
while rows are written.

**Reading.** `predicate` excludes files and row groups by their bounds. `parquet` checks a file's
footer before Arrow reads it, then decodes the rest. `exports` writes file lists for Spark, and
`publish` the metadata of open formats, for readers that do not know the manifest.

    rows ─▶ `partitioning` ─▶ `parquet` ─▶ `store` ◀── `manifest` ◀── commit
                                              │            │
    readers ◀── `parquet` ◀── `predicate` ◀───┴────────────┘ one version

`table` is the definition that all parts share: schema, primary key, partition spec, sort order.
`backoff` computes the wait before the next attempt, and `store.retry` decides whether there is one.
`prefetch` makes one item while another is used.

This package knows neither the log nor the daemon. It deletes a file only when no kept or future
version can need it. Except `jobs` it also runs on Spark executors, without trio. Start reading at
`manifest`.
"""
