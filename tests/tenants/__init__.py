"""Five tenants at one daemon, one of them hostile: ``make tenants``.

No tenant affects another. Each tenant's latency stays within a factor of that without the
hostile one, memory stays below a limit that kills, and no tenant gets unauthorized access.

    place      a daemon with TLS, tokens and an audit log, in a cgroup where available
    tenants    the well-behaved ones: small writes and queries at a steady rate, each timed
    hostile    the hostile one: a process that tries one attack after another, with its own token
    attacks    its attacks, by name
    campaign   runs without and then with the hostile tenant, and judges
"""
