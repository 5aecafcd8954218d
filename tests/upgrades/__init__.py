"""What a release has written opens for ever, and its client goes on working.

``fixtures`` has a folder for each release: a data directory and a store that it was killed over
(``data.tar.xz``), what it answers when it is started on them (``answers.json.xz``), and its client
(``client.zip``). ``make fixture`` makes that of this release (``make``, ``lives``, ``written``);
``asking`` asks the same of today's code. ``make rollback`` (``rolling_back``) lets an earlier
release open what this one has written.
"""
