"""What an operator sees over HTTP: probes, metrics, status as JSON, one page.

- ``status``: the shape of ``/api/status`` (pure types; the command line and Flight use them too)
- ``rates``: counts of the last minute, by second (pure)
- ``app``: routes, bodies and headers; asks a ``StatusSource`` and never reaches into the daemon
- ``server``: the socket, and how it stops
- ``page.html``: the operator's page, which reads ``/api/status``

Nothing here changes the daemon: every route is a GET.
"""
