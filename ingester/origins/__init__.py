"""Who has written what: which sequence of an origin is new, a duplicate, or another daemon's.

    ``registry`` ── an origin ──┬── ``origin_table`` (one table) ──┬── ``tenure``: one process
                                └── …                              ├── …
                                                                   └── ``fates``: what is under way

    ``checkpoints`` ── what sources gave to be kept with their rows (``checkpoint_state``), until a
                       committed version has it; ``checkpoint_growth`` adds up their bytes

A stream or a transaction asks its origin table whether a sequence is new, begins it, and ends it
when the log has told its fate; whoever repeats it meanwhile waits for that. The buffers note what
is applied, and let go of it when it is in files, which moves the origin's durable sequence on.

The room reads no manifest and commits nothing: what a version says of origins comes in from
:mod:`ingester.tables`, and :func:`persist.manifest.origins.verdict_of` is the rule that decides by
it. All modules are pure. Start reading at ``origin_table``.
"""
