"""The protocols: each decodes, hands over and translates what goes wrong.

    ``flight``    Arrow Flight: writes, queries, actions
    ``http``      probes, metrics, status as JSON and the operator's page
    ``tls``       the certificates of both, taken up anew when their files change
    ``auth``      tokens, rights, the audit log
    ``portal``    where handlers enter the event loop; the log has its own way there
                  (`wal.group_commit`), and a few parts leave a single call or wake-up
    ``services``  what a protocol needs of the daemon, which makes it

A protocol has no rules of its own, and imports nothing of the daemon. Start reading at
``flight.server``.
"""
