"""TLS of both listeners: certificates are read, checked and reloaded.

    ``certificates``  pure: what PEM files hold, whether they can be served with, until when
    ``memory_files``  certificates as files in memory, for OpenSSL and hypercorn
    ``held``          the certificates in use, and their reload when the files change

Flight and HTTP show the same certificates. A key leaves this room only to pyarrow and OpenSSL.
Start reading at ``certificates``.
"""
