"""Peers: systems that users would pick instead, each in its best honest configuration.

    bench ──▶ started(peer) ─┬─▶ its server, if it has one      (InfluxDB, PostgreSQL)
                             └─▶ writing processes ─▶ Store ─▶ a Writer per thread

A peer gets the same rows, batches and writers as the ingester and acknowledges each batch by
itself. Every setting that does not affect durability has the value that is fastest here. A slow
peer is not left out; a missing one is reported.

One module per peer, each with ``PEER``; :mod:`peer` defines the interface, :mod:`processes` runs
a peer, :mod:`writing` is the program of its processes, :mod:`installing` installs its
requirements.
"""
