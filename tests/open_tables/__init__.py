"""Reads published tables with the engines that people use, and compares every value.

    ``tables``       makes tables through a real daemon and publishes them along the way
    ``engines``      pyiceberg, Polars and deltalake in this process, others behind one call
    ``processes``    starts the others: ``duckdb_process``, ``spark_process``, ``trino``
    ``terms``        filters in the language of each engine
    ``comparing``    what our own reader returns for a version, and whether an engine returns it
    ``limits``       what an engine cannot do, each with its reason
    ``campaign``     reads while daemons write, compact and are killed

``make test`` runs pyiceberg, Polars, deltalake and DuckDB. ``make open-tables`` adds Spark 4.0 and
4.1, Trino, and the campaign; see ``__main__``.
"""
