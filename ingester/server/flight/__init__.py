"""The Flight server: gRPC's threads decode requests and pass them to the rooms below.

    ``server``   the methods of Flight; each call runs in a thread of gRPC's
    ``callers``  the token and trace of a call, the origins it may use, the end of its permit;
                 ``handshake`` answers drivers that ask with their credentials first

    DoPut        ``requests`` (the descriptor) ─▶ ``put``, or ``sync`` for replication and copies
                 of whole tables
                 ─▶ ``put_messages`` (reads messages and checks the schema's shape)
                 ─▶ ``ingester.write.sender`` … ``ingester.write.stream`` (outcomes)
                 ─▶ ``put`` sends the answers, in order
    DoGet        ``get`` ─▶ the query room, whose parts it sends; ``sql`` ─▶ the SQL engine
    Flight SQL   ``server`` ─▶ the room ``flight_sql``, by the interface in ``sql``
    DoAction     ``requests`` (the body) ─▶ ``actions``
    any error    ``refusals``: status, code and details as clients see them

Nothing here decides about rows. A message is in memory before anything here runs: connections,
calls and the size of messages are bounded by a proxy and by the process's memory limit, as pyarrow
has no options for them (docs/security.md, docs/sizing.md). Start reading at ``server``.
"""
