"""Answers to queries as tables, CSV, JSON lines, Arrow IPC or Parquet, batch by batch.

    a batch ──▶ ``formats``: the sink of its format ──▶ ``values``: cells of CSV, values of JSON
            └─▶ ``live_table``: a table for people that has no end

Every value is written in a form that says all of it, so that ``write`` reads the same again. A file
appears under its name when it is whole, or not at all. This room never asks the daemon: ``query``
does, and hands the batches over. Start reading at ``formats``.
"""
