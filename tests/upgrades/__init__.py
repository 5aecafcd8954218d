"""Every version opens what earlier releases wrote, and serves their clients.

``fixtures`` has a folder for each release: a data directory with the store of a killed daemon
(``data.tar.xz``), the release's answers when it is started on them (``answers.json.xz``), and
its client (``client.zip``). ``make fixture`` makes the folder of this release (``make``,
``lives``, ``written``); ``asking`` puts the same questions to today's code. ``make rollback``
(``rolling_back``) lets an earlier release open what this one has written.
"""
