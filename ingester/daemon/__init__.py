"""One process from its start to its end: put together, run, stopped.

    ``process_tuning`` ─▶ ``process`` ─┬▶ ``assembly``: the parts are made, top down
                                       ├▶ ``listening``: the Flight server takes calls
                                       ├▶ ``shutdown``: refuse, drain, persist, close
                                       └▶ ``exit_codes``: how it has ended, as a number

``process`` owns the nurseries: who starts when, who ends whom. ``assembly`` makes the parts, each
with those that it needs and with the observers that it tells. ``instrumentation`` is told what the
parts did and counts it; ``status_report`` puts together what each part tells about itself.

No rule about rows stands in this room. Start reading at ``process``, then ``assembly``.
"""
