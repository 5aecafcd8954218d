"""SQL answers of a daemon, compared with DuckDB over a copy of the same rows.

``script`` parses files of SQLLogicTest. ``mirror`` loads the tables of such a file into a daemon,
partly flushed. ``suites`` runs the queries. ``generator`` makes random queries, ``random_tables``
the rows that they read, and ``campaign`` runs them while rows are written and flushed. ``answers``
compares. ``engines`` asks a daemon and DuckDB.
"""
