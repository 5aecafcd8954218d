"""Lists of a table's files for readers that do not know the manifest.

    a committed version ─▶ `spark_metadata`: the list of Spark's own file sink

An export follows the manifest: it lists committed files, nothing is derived from it, and a table is
complete without it. Start reading at `spark_metadata`.
"""
