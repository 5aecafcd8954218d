"""TLS of the listeners: certificates are read, checked, taken up anew, and told about.

    ``certificates``  pure: what PEM files hold, whether they can be served with, until when
    ``contexts``      the context by which HTTP answers a new connection
    ``held``          the certificates in force; a look finds out whether the files have changed,
                      and what cannot be used is told and leaves those in force

Flight and HTTP have the same certificates at any moment. A key leaves this room to pyarrow and to
OpenSSL alone. Start reading at ``certificates``.
"""
