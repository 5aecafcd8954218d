"""SQL over buffered rows and files: DuckDB in worker processes, one query at a time in each.

    protocol ─▶ ``request`` ─▶ ``engine`` ─▶ ``answer`` ◀─ ``wire`` ─▶ ``worker``, another process
                 a statement    limits        serves it     messages     parses and computes
                                  ├ ``processes``  start, keep warm, kill
                                  └ ``tables``     one snapshot of all tables of the query
                                      ├ ``sources``  how the worker reads each part of it;
                                      │              ``apart`` waits for a silent store
                                      └ ``peers``    what other daemons buffer

A worker asks for the tables that its statement names. It reads local Parquet files itself; buffered
rows and all other files it asks the daemon for, batch by batch, with the columns and the filter
that DuckDB passes on. The daemon's thread that waits for the answer serves these scans, so a client
that reads nothing stops its query. A worker has no files, no network and no secrets; what goes
wrong in it ends one query (tests/sql). ``opening`` makes the engine of a daemon.

Nothing here writes. Start reading at ``engine``, then ``answer``, then ``worker.computing``.
"""
