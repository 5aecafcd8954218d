"""The worker process: it computes one query at a time and reads what the daemon gives it.

    ``__main__``     the process: its limits, one query after another
    ``computing``    one query: parse, ask for its tables, compute, send
    ``answer_types`` Arrow types of an answer, and what Arrow has no place for
    ``statement``    which tables a statement names, and whether it only reads
    ``parameters``   the types of parameters, as far as a statement tells them
    ``database``     a DuckDB that is locked down, for one query
    ``views``        the SQL of the views that stand for tables
    ``sources``      datasets through which DuckDB reads rows of the daemon
    ``substrait``    the filters that DuckDB passes to a dataset, in the form of a ticket's filter

Nothing here imports the daemon. Start reading at ``computing``.
"""
