"""The catalogue of tables, and the one gate to each table's manifest.

    ``catalog`` ─▶ ``ddl``: opened, created, widened, registered
        │              └ ``owner``: a keyed table's writes have one daemon
        └▶ ``commits`` ◀── ``pending_commit``: uploaded buffers that wait
              ├ ``commit_batches``: those that wait together go in together
              ├ ``commit_barrier``: those that belong together go in together or not at all
              ├ ``origin_claims``: what a version says of origins
              │    └ ``origin_takeover``, ``origin_lookup``
              ├ ``version_overlap``: buffers whose rows somebody else may have committed
              └ ``install``: the version takes the place of its buffers

One commit of a table at a time. Nothing else in the daemon writes a manifest. Start reading at
``commits``.
"""
