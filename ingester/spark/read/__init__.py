"""``read_table``: a version of a table as a DataFrame, with the buffered tail if wanted.

    ``read_table`` ─▶ ``scan`` ─┬▶ ``native``      Spark's own Parquet reader, ``s3a`` for a bucket
         │                      ├▶ ``arrow_scan``  pyarrow on the executors, where there is no S3A
         │                      └▶ ``tail`` ─▶ ``merge``: buffered rows, each row once
         ├ ``filter_option`` ─▶ ``pruning``: files that cannot have a row are not read
         ├ ``nan_statistics``: filters on columns that may hold NaN
         └ ``columns``, ``types``, ``nanoseconds``: what Spark sees of a table's types

It never guesses: what a reader cannot give exactly is refused. Start reading at ``read_table``.
"""
