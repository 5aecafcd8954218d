"""Tests Prometheus' rules and the dashboard on real daemons, and the runbook's remedies.

    rules        reads the files of ``deploy/``
    prometheus   promtool, and a scraping server; tests are skipped if they are not installed
    site         the machine of a daemon, with TLS and tokens or without
    faults       all faults, each with the alerts that it must fire, and its runbook entries
    fault_steps  the common parts of faults; faults are in store_, process_ and background_faults
    operator     types the runbook's commands and checks their output
    recorded     scrapes before, during and after a fault as series for ``promtool test rules``

``make alerts`` runs every fault against daemons; ``test_alerts`` runs the quick ones.
"""
