"""Pushes to three regions with real parts, while readers ask, writers write, and processes die.

    ``world``       three stores, three daemons, a follower, the configuration of pushes
    ``campaign``    one push after another, good and bad, and whether each ends as it should
       ``processes``   the job and the leader of a push, which die and are begun again:
                       ``job``, ``leader``, over stores that end them (``dying``); ``some_hooks``
       ``streaming``   rows that are written all the time, and which of them have to be there
       ``reading``     readers by daemon, store, DuckDB and Spark
       ``rows``        what is pushed and streamed, and the judge of each answer
    ``picture``     the record of a push as a drawing

``python -m tests.push`` is the long form, with Spark; ``--picture docs/push.svg`` draws two pushes.
"""
