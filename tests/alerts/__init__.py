"""Prometheus' rules and the dashboard, tried on what daemons tell; and the runbook, on what helps.

    ``rules``        the files of ``deploy/``, read
    ``prometheus``   promtool, and a server that scrapes; where there is none, tests are skipped
    ``site``         the machine of a daemon, with TLS and tokens or without
    ``faults``       what may befall it, each with the alerts that it has to fire, and its entries
    ``befalling``    what all faults have; they are in ``of_stores``, ``of_processes``, ``of_work``
    ``operator``     types what the runbook says, and sees whether it is so
    ``recorded``     scrapes before, during and after a fault as series for ``promtool test rules``

``make alerts`` lets every fault befall daemons; ``test_alerts`` those that are quick.
"""
