"""SQL over buffered rows and files: DuckDB in worker processes, one query at a time in each.

``request`` is a statement as clients send it. ``engine`` is what protocols call.
"""
