"""Recovery: a daemon's own log after a crash, and logs of dead daemons.

    ``marks``   before anything is written: is our log here, and is this its store?
    ``replay``  our log ─▶ each table opened at its newest version, our epoch committed to it
                (``ingester.tables.ddl``) ─▶ rows that no file has ─▶ the buffers, within limits
    ``adopt``   a dead daemon's log ─▶ ``orphan_log`` reads it ─▶ ``adopt_table`` commits its rows
                under their old identity, by ``adoption_rules``. ``ingester wal adopt`` is a process
                of its own: ``ingester.flush.file_writer`` makes the files, and it commits them by
                ``persist.manifest`` itself

    ``adopt_store``  the same for log objects of a lost machine; it ends that log with fences first,
                     and deletes the objects afterwards
    ``log_gc``       deletes log objects of ingesters that do not come back
    ``left_logs``    adopts logs that a daemon looks after, once they are free: those of
                     ``left_sources``, folders and logs in the store

All of them skip what manifests and origins have, so running twice adds nothing. Adoption never
changes a log on disk. One of our segments is deleted only when all its rows are committed or
another process has taken them over. Start reading at ``replay``.
"""
