"""Parts of the table ``sql``: SQL through the daemon, compared with DuckDB and Spark.

:mod:`queries` has the data sets and their ten queries. :mod:`plain_duckdb` is DuckDB in a process
of its own. :mod:`asking` asks the daemon and finds its workers. :mod:`beside` measures what a heavy
query costs others, its memory, and how soon it ends.
"""
