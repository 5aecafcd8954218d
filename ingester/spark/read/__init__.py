"""``read_table``: one version of a table as a DataFrame, optionally with buffered rows.

    ``read_table`` ─▶ ``scan`` ─┬▶ ``native``      Spark's own Parquet reader, S3A for a bucket
         │                      └▶ ``arrow_scan``  pyarrow on the executors, where S3A is missing
         ├▶ ``tail``      buffered rows of daemons; ``scan`` merges them, each row once
         ├  ``filters``   the filter option: prunes files, selects rows
         └  ``columns``   the table's columns and types as Spark sees them

A reader that cannot give exact values refuses. Start reading at ``read_table``.
"""
