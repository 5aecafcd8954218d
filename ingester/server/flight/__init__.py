"""The Flight server: gRPC's threads decode requests and pass them to the rooms below.

    ``door``         the address where the server listens, with its certificates
    ``server``       the methods of Flight; each call runs in a thread of gRPC's
    ``callers``      reads a call's token before its handler runs; the handler checks the right
    ``origin_names`` which caller may write under which origin's name
    ``permitted``    ends a stream whose token has expired or was revoked
    ``tracing``      reads the caller's trace context, where spans are collected
       DoPut        ``requests`` (the descriptor) ─▶ ``put``, or ``sync`` for replication, or
                    ``copy`` for a whole table
                    ``unanswered`` bounds the batches that are read and not yet answered
                    ─▶ ``put_reader`` (reads messages and checks the schema's shape)
                    ─▶ ``ingester.write.sender`` … ``ingester.write.stream`` (outcomes)
                    ─▶ ``put`` sends the answers, in order
       DoGet        ``get`` ─▶ the query room, whose parts it sends
       DoAction     ``requests`` (the body) ─▶ ``actions`` (``log_level`` is one of them)
       any error    ``refusals``: status, code and details as clients see them

Nothing here decides about rows. A message is in memory before anything here runs: connections,
calls and the size of messages are bounded by a proxy and by the process's memory limit, as pyarrow
has no options for them (docs/security.md, docs/sizing.md). Start reading at ``server``.
"""
