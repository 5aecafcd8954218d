"""Flight SQL clients in other languages against a real daemon: ADBC and Arrow in Go, JDBC in Java.

    ``programs``     starts the clients: ``GoClient`` is the program in ``go``, ``jvm`` a JVM
                     with the JDBC driver
    ``jdbc``         calls the JDBC driver from Python

``make flight-sql`` fetches both clients into ``.venv/flight_sql`` and runs the tests. Without them
the tests are skipped.
"""
