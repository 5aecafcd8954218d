"""Who has written what: which sequence is new, a duplicate, or another daemon's.

    ``registry`` ── an origin ──┬── ``origin_table`` (one table) ──┬── ``tenure``: one process
                                └── …                              └── …

Each knows only what is below it; the registry does what concerns an origin as a whole. What the
manifest says of origins comes in from :mod:`ingester.tables`. Pure. Start reading at ``registry``.
"""
