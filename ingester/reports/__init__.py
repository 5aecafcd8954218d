"""Reports: what programs beside the daemon tell it about their work, for people to read.

    ``replications``   a replicator's report: the tables it follows, their phases and lags
    ``pushes``         a push's status, which its controller writes into each region's store

A report decides nothing. The daemon shows it in its status; the senders (`ingester.postgres`,
the push controller) and the daemon share only these structs, so neither imports the other. Pure:
msgspec structs, with no loop, socket or file. Start reading at ``replications``.
"""
