"""What the daemon publishes about itself: status, alarms, metrics, history, traces and its log.

    the parts' ``statistics()`` ─▶ ``facts`` ─┬▶ ``alarms``: rules over the facts
        (structs of ``status``)               ├▶ ``gauges``: /metrics, read at a scrape
                                              ├▶ ``history``: rates, and the last minutes
                                              └▶ ``status``: /api/status and the action ``status``
                                                   ``status_lists``: its long lists, in pages
                                                   ``table_detail``: one table, its files in pages
    each write, query, flush ─▶ ``metrics``: counters and histograms, /metrics
                                ``tracing``: spans for OpenTelemetry
    ``logs``: events in the past tense on standard error; ``log_levels`` says which

:class:`ingester.daemon.status.StatusPublisher` collects the facts and publishes them: the page,
``/api/status``, ``ingester status``, ``/metrics`` and ``/health`` have one source. Nothing here
changes the daemon or imports a part of it. Start reading at ``facts``.

To find out why a batch was refused, for example with ``memory``:

1. ``ingester status`` shows the reason (``writes``) and the alarm; with ``--json``,
   ``admission.memory.by_kind`` says what uses the memory, and ``namespaces`` who. The refusal's
   ``details`` name the namespace, if it is over its quota or its share.
2. ``deploy/RUNBOOK.md`` has an entry with the name of the alarm: ``memory-high``.
3. In the code, ``ingester.errors`` maps the code to its class, ``MemoryFull``. The check is in
   ``ingester.write.admission``, by the watermarks of ``ingester.memory.ledger`` and the shares and
   quotas of ``ingester.quotas``.
"""
