"""Replicates PostgreSQL's tables: a first copy, then the changes in its write-ahead log.

The room in the order of its story:

    connection      ``connection``, ``server_errors``: reach the source, tell what a retry helps;
                    ``options``: what is asked for, and what tables are called here
    catalog, types  ``catalog`` (queries in ``catalog_tables``, results in ``facts``), ``types``
    plan and check  ``conditions``: can this be followed, and if not, what helps;
                    ``publication``; ``planning``: look at the source, decide per table;
                    ``watching``: apply that; ``starting``: the start, and requests
                    for new copies; ``history``: is the source's log the one that was read, by
                    its ``timelines``; ``checking``: a dry run
    snapshot copy   ``snapshot``: a position in the log; ``copying``: rounds of copies;
                    ``copy_stream``: rows of one table
    stream          ``slot`` ─▶ ``pgoutput`` ─▶ ``following`` ─▶ ``collector`` ─▶ ``sync_messages``
                    ─▶ ``sending`` ─▶ daemon
    positions       ``states``, ``tables``: what each table has, and how its rows are read;
                    ``positions``: how far the slot may advance
    status          ``reporting``: reports to the daemon, which ``ingester.reports`` describes
    verify          ``verify``: compare source and copy, row by row

``replicator`` runs it all: start, look, copy beside the stream, follow; after a fault it starts a
new session. A replicator stores nothing itself: the tables' states and the origin's sequences, both
at the daemon, say what each table has. This room never imports the daemon. Start reading at
``planning``, then ``following``.

Calls to the source raise ``SourceFailed`` if something must be changed first, and
``psycopg2.OperationalError`` if a retry may help; calls to the daemon raise ``ClientError``.
The command is ``ingester replicate postgres``; it needs ``ingester[postgres]``.
"""
