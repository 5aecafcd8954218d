"""The Flight server: gRPC's threads decode requests, hand them over and translate what goes wrong.

    ``callers`` the token of a call, before its handler runs; the handler checks the right
    ``call_room`` bounds the calls that wait to be let in, as each has a thread
    ``origin_names`` who may write under which origin's name
    ``permitted`` what a stream brings as long as its token is valid
    ``tracing`` what a call says of its caller's span, where something is traced
    ``server``  the methods of Flight, one thread of gRPC's for each call
       DoPut        ``requests`` (the descriptor) ─▶ ``put``, or ``sync`` for replication, or
                    ``copy`` for a whole table
                    ``unanswered`` lets a message be read while few are unanswered
                    ─▶ ``put_reader``, ``decoding`` (which bounds what they expand to),
                    ``hoards`` (what streams hold between batches)
                    ─▶ ``ingester.write.sender`` … ``ingester.write.stream`` hands answers out
                    ─▶ ``put`` sends them, in order
       DoGet        ``get`` ─▶ the query room, whose parts it sends
       DoAction     ``requests`` (the body) ─▶ ``actions`` (``log_level`` is one of its own)
       any error    ``refusals``: status, code and details as clients see them
    ``door``         where the server listens, and with which certificates
    ``reception``    bounds what arrives before a handler runs, by ``interposition`` between
                     pyarrow's libraries
    ``first_heads``  bounds the heads of calls from the first one of a connection, likewise
    ``unread``       what has arrived and made no batch, and who has to go where memory is short
    ``floods``       who sends bytes that make neither, and how fast
    ``connections``  who is connected, how many may be, and how one is cut

Nothing here decides about rows: that is the business of the rooms that requests are handed to.
Start reading at ``server``.
"""
