"""The catalogue of tables, and the one gate to each table's manifest.

    ``catalog`` ─▶ ``ddl``: opened, created, widened, registered
        │              ├ ``rules``: how many there may be, and who may have one made
        │              ├ ``table_quota``: how many a namespace may have
        │              ├ ``owner``: a keyed table's writes have one daemon
        │              ├ ``wide_schemas``: many columns are looked at in a thread
        │              └ ``new_version``: a table made, or made anew, with all of its rows
        └▶ ``commits`` ◀── ``finished_flush`` ◀── the flush room: files on their way into a version
              ├ ``commit_gate``: one table's manifest, one change at a time
              ├ ``commit_schedule``: when a finished flush is committed, and with whom
              ├ ``commit_batches``: what of a batch goes into the version, what is made anew
              ├ ``origin_claims``: what a version says of origins
              │    └ ``origin_takeover``, ``origin_lookup``
              ├ ``checkpoint_claims``: which states of sources go along
              ├ ``version_overlap``: buffers whose rows somebody else may have committed
              └▶ ``persist.manifest.commit`` ─▶ ``ingester.buffer.tree``: in one step the version is
                 installed and the buffers that it covers are let go

One commit of a table at a time. Nothing else in the daemon commits a version. Start reading at
``commits``.
"""
