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

1. ``ingester status`` shows the reason (``writes``), the alarm, and each namespace's use, refusals,
   quotas and share. With ``--json``, ``admission.memory.by_kind`` says what uses the memory;
   ``docs/limits.md`` explains the kinds. While other namespaces are admitted, ``writes`` is
   ``accepted`` and no alarm is raised, although one namespace is refused, over its quota or its
   share. The JSON that its client gets (``extra_info``, and ``details`` of the client library's
   errors) then has ``namespace`` and ``quota``.
2. ``deploy/RUNBOOK.md`` has an entry with the name of the alarm: ``memory-high``.
3. In the code, ``ingester.errors`` maps the code to its class, ``MemoryFull``. For a batch,
   ``AdmissionControl.enter`` in ``ingester.write.admission`` decides, by the watermarks of
   ``ingester.memory.ledger`` and the quotas and shares of ``ingester.quotas.namespaces``. Two
   other places refuse with this class: open transactions (``ingester.replication.service``) and
   copies of whole tables (``ingester.copies.copy_files``).
"""
