"""The protocols: each decodes, hands over and translates what goes wrong.

    ``flight``    Arrow Flight: writes, queries, actions
    ``http``      probes, metrics, status as JSON and the operator's page
    ``portal``    the one place where threads of gRPC enter the event loop
    ``services``  what a protocol needs of the daemon, which makes it

A protocol has no rules of its own, and imports nothing of the daemon. Start reading at
``flight.server``.
"""
