"""HTTP for operators: health checks, metrics, status as JSON, and the operator's page.

    ``server``     the listening socket, served by hypercorn until the daemon stops
    ``entrance``   checks a request's Host header, and the rights of its caller
       ``app``     routes, bodies and headers; asks a ``StatusSource``, which the daemon is
      ``page``     the operator's page, which reads ``/api/status`` and the other routes

Every route is a GET: nothing here changes the daemon, and nothing is imported from it. The form of
``/api/status`` is in :mod:`ingester.observability.status`. Start reading at ``app``.
"""
