"""A local copy of tables, which follows them: files of a version, then what came after, then live.

``sink`` is the interface of what keeps the copy; ``errors`` are what stops a follower. Start
reading there. ``destination`` opens what a user names: DuckDB, a Parquet folder, or a class of
the user's own, which ``user_class`` finds and checks.

Into DuckDB: ``duckdb_sink`` keeps rows and states in one transaction of a ``duckdb_file``, which
readers may open in between. ``duckdb_catalog`` says what is in it beside the rows, ``duckdb_rows``
has the SQL on these, and ``duckdb_types`` which of DuckDB's types each of ours is.

Into Parquet: ``parquet_sink`` makes a folder for each transaction and points readers to it;
``parquet_files`` are rows with their groups in the footer.
"""
