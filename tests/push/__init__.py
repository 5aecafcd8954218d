"""Pushes to three regions with real parts, while clients read and write, and processes are killed.

    ``world``       three stores, three daemons, a follower, the configuration of pushes
    ``campaign``    one push after another, good and bad, and a check that each ends correctly
       ``processes``   the job and the leader of a push, which are killed and started again:
                       ``job``, ``leader``, over stores that end them (``dying``); ``some_hooks``
       ``streaming``   continuously streamed rows, and which of them must be in an answer
       ``reading``     readers by daemon, store, DuckDB and Spark
       ``rows``        pushed and streamed rows, and the judge of each answer
    ``picture``     the record of a push as a drawing

``python -m tests.push`` is the long form, with Spark; ``--picture docs/push.svg`` draws two
pushes.
"""
