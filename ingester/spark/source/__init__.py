"""``format("ingester")``: a table as a Python data source, read at once or as a stream.

    ``source`` ─┬▶ ``batch`` ─▶ ``rows``       a version's rows
                │     └ ``pushed_filters``      what Spark's filters say can be left out
                ├▶ ``stream`` ─▶ ``rows``      files as versions add them, each once
                │     ├ ``stream_offsets``, ``stream_limits``   where it is, how much a batch takes
                │     └ ``new_columns``      where it stops: a file with columns it has no place for
                └▶ ``count``                   how many rows, without reading one

No state is kept outside Spark's own: an offset says all. Start reading at ``source``.
"""
