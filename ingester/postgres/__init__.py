"""Replicates PostgreSQL's tables: a first copy, then what its write-ahead log says of their rows.

    ``starting`` ─▶ ``looking`` ─▶ ``planning`` ─▶ ``copying``: new versions of tables, beside it
                       ▲                                                       ``slot``
                       └── ``replicator`` ◀── ``following``: messages ─▶ ``collector`` ─▶ daemon
                                                 └ ``positions``: what the slot may be told

``connection`` reaches the source; ``server_errors`` tells what a retry helps. ``catalog`` reads
what the tables are, as the values of ``facts``, by ``classes`` and ``attributes``. ``conditions``
says which of them can be followed, and which SQL (``sql_names``) helps others; ``names`` says what
they are called here, and ``publication`` has the server publish them. ``server_conditions`` says
what is wrong with a server or slot, and ``checking`` all of that beforehand.

A change stays as it came until it is sent: ``collector`` has it by its table's ``shape``,
``settle`` makes net changes of a transaction's whole rows, and ``sync_messages`` makes what is
sent: ``tuple_data`` reads the cells of many rows at once, ``bytea`` their digits, and ``types``
says what they become. ``pgoutput`` has the messages; ``truncating`` makes deletes of a TRUNCATE;
``sending`` knows what of a transaction is gone.

``replicator`` drives it, by ``options``. It keeps nothing of its own: ``tables`` has the ``states``
of the tables, which the daemon keeps with their rows, and the sequences of our origin say which
transactions each of them has. ``keeping`` moves the slot while nothing happens, ``holding`` has it
stay for tables that wait for a copy, and ``resyncing`` asks another process for one. Start reading
at ``planning``, then ``following``.

A copy of one table reads a ``snapshot``, whose position in the log is known: ``table_copy`` sends
its rows, which ``copy_blocks`` has from the server and ``copy_batches`` makes record batches of;
``wide_rows`` reads large rows in pieces.
``statement_thread`` ends what the server is still at work on, ``blockers`` says who it waits for.

``reporting`` makes the report of `ingester.reports`, for people to see, and ``report_sender`` sends
it without ever blocking replication. The room ``verify`` compares a source
with its copy.

Started as ``ingester replicate postgres``; needs ``ingester[postgres]``.
"""
