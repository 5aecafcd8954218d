"""Five tenants at one daemon, one of them hostile: ``make tenants``.

Law of this folder: what one tenant does changes nothing for the others. Each of them has what it
has without the hostile one, within a factor; memory stays under a limit that kills; and nobody is
in who should not be.

    place      a daemon with TLS, tokens and an audit log, in a cgroup where there is one
    tenants    the good ones: small writes and queries at a steady rate, each timed
    hostile    the other one: a process that tries one attack after another, with its own token
    attacks    what it tries, by name
    campaign   first without it, then with it; the verdict
"""
