"""What an operator sees over HTTP: probes, metrics, status as JSON, one page.

    ``server``     the socket, and how it stops
     ``http1``     what is spoken on a connection, and whose turn it is
  ``connections``  who makes room where it is full, and who has idled too long
       ``app``     routes, bodies and headers; asks a ``StatusSource``, which the daemon is
       ``client_certificates``  who is let in to them where ``tls.client_ca`` asks for certificates
       ``entrance``  who is answered: the request's Host, and the right of its token
      ``tables``   the routes of one table: what it is, its partitions and files
      ``page``     the operator's page, which reads ``/api/status`` and the others

Every route is a GET: nothing here changes the daemon, and nothing is imported from it. The form of
``/api/status`` is in :mod:`ingester.observability.status`. Start reading at ``app``.
"""
