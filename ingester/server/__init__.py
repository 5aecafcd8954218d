"""The protocols. Each decodes requests, calls the engine, and translates its errors.

    ``flight``    Arrow Flight: writes, queries, actions
    ``flight_sql``  Flight SQL on the same port, for ADBC, JDBC and ODBC drivers
    ``http``      probes, metrics, status as JSON and the operator's page
    ``tls``       the certificates of both, reloaded when their files change
    ``auth``      tokens, rights, the audit log
    ``portal``    lets handler threads call functions on the event loop
    ``services``  the parts of the daemon that a protocol calls

A protocol has no rules of its own and imports nothing of the daemon. Start reading at
``flight.server``.
"""
