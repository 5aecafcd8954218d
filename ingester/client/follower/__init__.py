"""A local copy of tables, which follows them: files of a version, then what came after, then live.

``sink`` is the interface of what keeps the copy. Start reading there.

Into DuckDB: ``duckdb_types`` says which of its types each of ours is.
"""
