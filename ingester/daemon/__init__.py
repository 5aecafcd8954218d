"""One process: assembled, started, drained, stopped.

    ``process`` ─▶ ``process_tuning``   before Arrow or gRPC is used
                ─▶ ``startup``          data directory locked, log checked (`wal`), store probed,
                                        marks judged (`recovery`), epoch claimed
                ─▶ ``assembly``         each room is opened, after those that it needs
                ─▶ ``recovery``         the log is replayed into the buffers
                ─▶ ``listening``        the Flight server accepts calls
                ─▶ ``drain``            refuse writes, flush, release; can be undone
                ─▶ ``shutdown``         refuse, drain, flush, close
                ─▶ ``exit_codes``       the outcome as an exit code and a line in the log

``process`` owns the nurseries; their nesting is the stop order. HTTP answers from the start on and
reports that the daemon is not ready. ``security`` holds certificates and tokens, and ``reloading``
reloads them and the quotas. ``service_manager`` notifies systemd.

``status`` publishes the daemon's state: it collects the facts from the parts, and from
``store_probe`` (is the store reachable?), ``disks`` (free space), ``loop_watch`` (is the event loop
blocked?) and ``push_watch`` (the pushes' statuses in the store). ``status_items`` makes its long
lists. What is published is defined in `ingester.observability`.

No rule about rows is in this room. Start reading at ``process``, then ``assembly``.
"""
