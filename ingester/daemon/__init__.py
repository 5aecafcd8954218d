"""One process from its start to its end: put together, run, stopped.

    ``process_tuning`` ─▶ ``process`` ─▶ ``assembly`` ─▶ … ─▶ ``shutdown`` ─▶ ``exit_codes``
                               │             └ ``instrumentation``: what the parts did is counted
                               └ ``status_report``: what the daemon says about itself

``process`` owns the nurseries: who starts when, who ends whom. ``assembly`` makes the parts and
tells them of each other. No rule about rows stands in this room. Start reading at ``process``.
"""
