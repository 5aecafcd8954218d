"""``format("ingester")``: a table as a Python data source, read as a batch or as a stream.

    ``source`` ─┬▶ ``batch``                 one version's rows, or only their number
                └▶ ``stream`` ─▶ ``batch``   files in the order in which versions add them
                      └ ``stream_offsets``   position of a stream, limit of a batch

No state is kept outside Spark's own: an offset says everything. Start reading at ``source``.
"""
