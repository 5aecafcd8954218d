"""Peers: systems that users would pick instead, each in its best honest configuration.

    bench ──▶ started(peer) ─┬─▶ its server, if it has one      (InfluxDB, PostgreSQL)
                             └─▶ writing processes ─▶ Store ─▶ a Writer per thread

Law of this package: same rows, same batches, same writers as the ingester, each batch acknowledged
by itself, and of every choice that the durability leaves open the one that is fastest here. What a
peer cannot do faster is no reason to leave it out; what is missing here is named.

One module per peer, each with ``PEER``; :mod:`peer` says what that is, :mod:`processes` runs it,
:mod:`writing` is what its processes do, :mod:`installing` gets what it needs.
"""
