"""From frozen rows to Parquet files that a table's manifest lists, and back to rows.

**The way of rows into files.** Rows are told apart by ``partitioning`` before they are buffered;
its specs also name the folders. A frozen buffer stands in line in ``jobs``: a fixed number of
workers, a partition always at the same one, and a number of bytes for all. ``parquet`` puts its
rows into order, drops what a later row of the same primary key replaced, and encodes them with
bounds of their columns. ``store`` puts each file once, under a name of its own. Nobody sees it
before the commit.

**The commit.** ``manifest`` is the list of a table's files, in versions: a changelog of actions,
and a commit that only one of any number of writers can create. A reader has one version and sees
the files of that, whatever is committed or cleaned up meanwhile. It also says up to which sequence
of which log a partition is in files, who writes under which epoch, and what a client has written
before: so a restart replays nothing twice, and a process that was replaced cannot commit.

**Versions of a table as a whole.** ``switching`` makes another one count, and goes back, while rows
come in.

**The way of files to rows.** ``predicate`` tells by bounds which files and row groups cannot have a
row that a filter asks for; ``parquet`` checks a file's footer before Arrow sees it, and decodes
what is left. ``exports`` are lists of files for readers that do not know the manifest.

    rows ─▶ ``partitioning`` ─▶ ``parquet`` ─▶ ``store`` ◀── ``manifest`` ◀── commit
                                                  │              │
    readers ◀───── ``parquet`` ◀── ``predicate`` ◀┘◀─────────────┘ one version

``table`` is what all of them agree on: schema, primary key, partition spec, order. ``backoff`` says
how long to wait before the next attempt (and ``store`` when there is one), ``prefetch`` makes one
item while another is used.

It knows neither the log nor the daemon, and never loses a file by itself: what is deleted was
garbage for ever before. But for ``jobs`` it runs on Spark's executors too: no trio. Start reading
at ``manifest``.
"""
