"""The crash campaign: a daemon is killed while clients use it, and every row is counted each time.

    python -m tests.crash [--seed N] [--kills N] [--worlds disk,s3,cleaned]      (``make crash``)
    python -m tests.crash.check HISTORY…

Eight writers send rows into four tables and two readers read them. The daemon is killed at
random moments: during writes, flushes and replay, and just after its start. Between kills it is
stopped, its disk fills up, its store fails or lies, or its clock jumps. Each row contains its
writer and its number, so the writers' own notes alone determine which rows must exist:

    rows            the content of a row, from its writer and number
    ledger          the writers' notes: sent, acknowledged, refused
    history         the same with times, and every read of every client
    session         the streams of a writer         writer   writers and readers
    client_process  a process of several clients    writers  controls these processes
    checking        compares reads with the notes while the campaign runs
    check           judges offline whether a history is possible
    reading         all rows of a table: through the daemon, from the manifest, with Spark
    kills           plans the kills and the troubles before them
    worlds          where a daemon lives             store_proxy  a store that fails and lies
    faulty          the daemon with another clock, or one that dies at a named step
    report          the requested extent and the findings
    campaign        start, write, kill, check, repeat    ending  flush, read in every way
    run             campaigns in several worlds, Spark for all, the histories judged
"""
