"""The catalogue of tables, and the single commit gate of each table's manifest.

    ``catalog`` ─▶ ``ddl``: open, create, widen, register, own, if the rules allow it
        │              ├ ``encodable``: a new column's type is tried with extreme values
        │              └ ``new_version``: create or replace a table with all of its rows
        └▶ ``commits`` ◀── finished flushes
              ├ ``commit_schedule``: when a finished flush is committed, and with which others
              ├ ``commit_batches``: which of them a version takes, which must be made again
              ├ ``claims``: what a version says of origins and checkpoints
              │    └ ``origin_takeover``, ``origin_lookup``
              └▶ ``persist.manifest.commit`` ─▶ ``ingester.buffer.tree``: one step installs the
                 version and releases the buffers that it covers

One commit of a table is under way at a time, and nothing else in the daemon commits a version.
``opening`` makes the parts of the room. Start reading at ``commits``.
"""
