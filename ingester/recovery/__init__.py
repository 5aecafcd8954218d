"""From a log back to rows: our own after a crash, another's after it is dead.

    ``marks``   before anything is written: is our log here, and is this its store? ``data_mark`` is
                what a data directory says of itself
    ``replay``  our log ─▶ each table opened at its newest version, our epoch committed to it
                (``ingester.tables.ddl``) ─▶ what no file has ─▶ the buffers, within the limits
    ``adopt``   a log whose daemon is dead ─▶ ``orphan_log`` reads it ─▶ ``adopt_table`` commits
                its rows for who wrote them, as ``adoption_rules`` say. ``ingester wal adopt`` is a
                process of its own: it has files made by ``ingester.flush.file_writer`` and commits
                them by ``persist.manifest`` itself, under the old identity

    ``left_logs``  the folders that a daemon looks after: ``adopt`` by itself, once they are free

All skip what manifests and origins already hold, so that running twice adds nothing. Adoption
never changes a log; a segment of ours goes when all in it is in committed versions or is another
process's to bring. Start reading at ``replay``.
"""
