"""Transactions of a replication client: changes of rows, applied to their tables as a whole.

    a message ─▶ ``messages``: its columns by role, in the types of its table
      ─▶ ``service`` ─▶ ``open_transactions``, until a message brings the sequence
      ─▶ ``dedup``: which tables lack it ─▶ ``commit``:
            ``fold``: one change per key ─▶ look up kept values ─▶ whole rows
              ─▶ one log record of all tables

An open transaction is in memory only: it ends with the process, and its client sends it again from
its first message. The room has no code for protocols, and writes only to the log. ``reports``
keeps the latest report of each replicator, for people. ``opening`` makes the parts. Start reading
at ``service``.
"""
