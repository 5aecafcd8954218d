"""Prometheus' rules and the dashboard, tried on what daemons tell, by Prometheus' own programs.

    ``rules``        the files of ``deploy/``, read
    ``prometheus``   promtool, and a server that scrapes; where there is none, tests are skipped
    ``faults``       what may befall a daemon, each with the alerts that it has to fire
    ``recorded``     scrapes before, during and after a fault as series for ``promtool test rules``

``make alerts`` lets every fault befall a daemon; ``test_alerts`` those that are quick.
"""
