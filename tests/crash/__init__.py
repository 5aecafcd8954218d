"""The crash campaign: clients of a daemon that is killed, and every row counted each time.

    python -m tests.crash [--seed N] [--kills N] [--worlds disk,s3,cleaned]      (``make crash``)
    python -m tests.crash.check HISTORY…

Eight writers send rows into four tables and two onlookers read them while the daemon is killed at
random moments: while they write, while it persists, while it replays, just after its start. In
between it stands still, its disk is full, its store fails or lies, its clock jumps. Each row says
who wrote it and its number, so what must be there is known from the clients' own notes alone:

    rows            what a row looks like, from its writer and number
    ledger          what the writers noted: sent, acknowledged, refused
    history         the same with times, and every read of anybody
    session         the streams of a writer         writer   writers, and onlookers
    client_process  a process of them               writers  the campaign's hold on them
    checking        what was read against what was noted, while the campaign runs
    check           whether a history may have happened, offline
    reading         all rows of a table: through the daemon, from the manifest, with Spark
    kills           when and how the next kill comes, and what befalls a daemon before
    worlds          where a daemon lives             store_proxy  a store that fails and lies
    faulty          the daemon with another clock, or one that dies at a named step
    report          what was asked for, what was found
    campaign        start, write, kill, check, again          ending  persist, read in every way
    run             campaigns in several worlds, Spark for all, the histories judged
"""
