"""What the daemon tells: its log, its metrics, its status.

    every write ─▶ ``counters`` ─┐
    a scrape    ─▶ ``gauges``   ─┴▶ ``metrics`` ─▶ /metrics
    each call of a transformer ─▶ ``transformer_metrics`` ─▶ /metrics
    what replicators report ─▶ ``replication_metrics`` ─▶ ``gauges``
    what namespaces have ─▶ ``namespace_metrics`` ─▶ ``gauges``
                   ``rates`` ─▶ ``status`` ─▶ /api/status and the action ``status``
                                ``status_lists``: its long lists, by pages
    ``table_detail``: one table in full, its partitions and files by pages
                   ``alarms`` ─▶ ``standing`` ─▶ ``status``: what somebody has to see to
                                ``standing_metrics`` ─▶ /metrics
                   ``history`` ─▶ /api/history: the last minutes
    ``tracing``: spans of single batches, queries and flushes, for OpenTelemetry
    ``logs``: events in the past tense, one line each, on standard error
              ``log_levels``: which of them are written, also while the daemon runs

A part that has a ``statistics()`` gives it as one of the structs of ``status``, which gauges are
read from, too. It counts and tells, and changes nothing. Start reading at ``metrics``.
"""
