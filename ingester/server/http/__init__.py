"""HTTP: health checks, metrics, status as JSON, the operator's page, and an Iceberg catalogue.

    ``server``     the listening socket, served by hypercorn until the daemon stops
    ``entrance``   checks a request's Host header, and the rights of its caller
       ``app``     routes, bodies and headers; asks a ``StatusSource``, which the daemon is
   ``iceberg``     a read-only Iceberg REST catalogue of the store's published tables
       ``sql``     answers an SQL query
      ``page``     the operator's page, which reads ``/api/status`` and the other routes

No route changes the daemon, and nothing is imported from it. The form of
``/api/status`` is in :mod:`ingester.observability.status`. Start reading at ``app``.
"""
