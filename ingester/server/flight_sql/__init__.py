"""Flight SQL, the protocol of ADBC, JDBC and ODBC drivers, on the port of Flight.

    a descriptor's command, a ticket, an action ─▶ ``messages`` (decoding) ─▶ ``dispatch``
        statements     ─▶ ``statements`` ─▶ the SQL engine, by ``flight.sql``
        metadata       ─▶ ``metadata`` (namespaces, tables, keys), ``sql_info``, ``type_info``
        rows to write  ─▶ ``ingest``

Nothing is kept between calls: the handle of a prepared statement has the statement and its
parameters. Everything else is answered with UNIMPLEMENTED and its name. The Flight server with
these calls is :class:`dispatch.FlightSqlServer`. Start reading at ``dispatch``.
"""
