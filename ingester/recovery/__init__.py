"""From a log back to rows: our own after a crash, another's after it is dead.

    ``replay``    our log ─▶ what no file has ─▶ the buffers, within the memory limits
    ``adopt`` ─▶ ``orphan_log`` ─▶ ``adoption_rules`` ─▶ ``adopt_table``: its rows committed for who
                                                          wrote them

Both skip what manifests and origins already hold, so that running twice adds nothing. A log is
left as it is until everything in it is in a committed version. Start reading at ``replay``.
"""
