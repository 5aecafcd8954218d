"""The crash campaign: writers against ``kill -9``, and every row counted after each restart.

    python -m tests.crash [--seed N] [--kills N] [--seconds S]        (``make crash``)

Eight writers send rows into four tables while the daemon is killed at random moments: while they
write, while it persists, while it replays, just after its start. Each row says who wrote it and its
number, so what must be there is known from the writers' own notes alone:

    rows        what a row looks like, from its writer and number
    ledger      what the writers noted: sent, acknowledged, refused
    writer      a process of writers          writers     the campaign's hold on them
    checking    what was read against what was noted
    reading     all rows of a table: through the daemon, from the manifest, with Spark
    kills       when and how the next kill comes
    report      what was asked for, what was found
    campaign    start, write, kill, check, again; at the end persist and read in every way
"""
