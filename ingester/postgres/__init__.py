"""Replicates PostgreSQL's tables: a first copy, then what its write-ahead log says of their rows.

    ``source``: publication, slot ──▶ ``pgoutput`` ──▶ ``collector`` ──▶ sync messages ──▶ daemon
           ▲                                             └ ``types``                          │
           └───────────────── the slot advances by durable sequences ◀────────────────────────┘

``connection`` reaches the source; ``server_errors`` tells what a retry helps. ``catalog`` reads
what the tables are, as the values of ``facts``, by ``classes`` and ``attributes``. ``conditions``
says which of them can be followed, and which SQL (``sql_names``) helps others; ``names`` says what
they are called here, and ``publication`` has the server publish them. ``server_conditions`` says
what is wrong with a server or slot, and ``checking`` all of that beforehand.

A change stays as it came until it is sent: ``collector`` has it by its table's ``shape``,
``settle`` makes net changes of a transaction's whole rows, and ``sync_messages`` makes what is
sent: ``tuple_data`` reads the cells of many rows at once, ``bytea`` their digits. ``replicator``
drives it: ``initial_copy`` first, then change by change, a transaction at a time. It keeps no state
of its own: the daemon's origin says how far it has come. Start reading at ``replicator``.

A copy of one table reads a ``snapshot``, whose position in the log is known: ``table_copy`` sends
its rows, which ``copy_blocks`` has from the server and ``copy_batches`` makes record batches of;
``wide_rows`` reads large rows in pieces.
``statement_thread`` ends what the server is still at work on, ``blockers`` says who it waits for.

``report`` is what it tells the daemon about itself, for people to see, and ``report_sender`` sends
that without ever standing in its way. ``states`` are what a table here keeps of where it comes from
and how far it is. The room ``verify`` compares a source with its copy.

Started as ``ingester replicate postgres``; needs ``ingester[postgres]``.
"""
