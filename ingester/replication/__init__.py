"""Transactions of a replication client: changes of rows, applied to their tables as a whole.

    a message ─▶ ``messages`` (its columns by role) ─▶ ``normalise`` (the types of its table)
      ─▶ ``service`` ─▶ ``open_transactions``, until a message brings the sequence
      ─▶ ``dedup`` (which tables lack it) ─▶ ``commit``:
            ``fold`` (one change per key) ─▶ ``point_lookup`` (rows that keep values)
              ─▶ ``fill_unchanged`` (whole rows) ─▶ one log record of all tables

An open transaction is in memory alone: it ends with the process, and its client sends it again from
its first message on. The room speaks no protocol, and writes nothing but through the log's sink.
``reports`` keeps what replicators tell of themselves, for people alone.
Start reading at ``service``.
"""
