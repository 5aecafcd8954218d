"""One process from its start to its end: put together, run, stopped.

    ``process`` ─▶ ``process_tuning``   before the first of Arrow or gRPC is used
                ─▶ ``open_folders``     who else may read what is there
                ─▶ ``startup``          the log checked (`wal`), the store asked, whether both are
                                        those that were left (`recovery`), an epoch claimed
                ─▶ ``descriptors``      how many connections there may be
                ─▶ ``assembly``         the parts are made, each after those that it needs
                ─▶ ``recovery``         the log is replayed into the buffers
                ─▶ ``listening``        the Flight server takes calls, at a ``flight_listener``
                ─▶ ``drain``            refuse, flush, let go, and take that back if asked
                ─▶ ``shutdown``         refuse, drain, flush, close
                ─▶ ``exit_codes``       how it has ended, as a number

``process`` owns the nurseries: who starts when, who ends whom. HTTP answers from the start on, and
says that the daemon is not ready. ``assembly`` hands each part the observers that it tells.
``instrumentation`` is told what the parts did and counts it; ``push_watch`` reads what the leaders
of pushes tell; ``status_report`` puts together what each part tells about itself, its
long lists from ``status_items``.

``watch`` raises alarms and keeps the last minutes: by ``figures`` of the parts, the room of the
``disks``, a ``store_probe``, and a ``loop_watch``, which tells where a loop that does not turn
stands.

``service_manager`` tells systemd that it is ready, alive, or on its way out.
``security`` has what the ways in need of TLS and tells of it in the status; ``reloading`` looks
whether files that it depends on have changed, and ``quota_reload`` takes up other quotas.

No rule about rows stands in this room. Start reading at ``process``, then ``assembly``.
"""
