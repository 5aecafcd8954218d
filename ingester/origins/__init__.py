"""Origins: which sequence of a producer is new, a duplicate, or another daemon's.

    ``registry`` ── an origin ──┬── ``origin_table`` (one table) ──┬── ``tenure``: one process
                                └── …                              └── …

    ``checkpoints`` ── checkpoints (``checkpoint_state``) until a committed version has them

A stream or transaction asks its origin table whether a sequence is new, begins it, and ends it when
its outcome is known; a repeat of it waits for that outcome. Buffers record what is applied and
release it when it is in files, which advances the origin's durable sequence.

The room reads no manifest and commits nothing: :mod:`ingester.tables` supplies what a version says
about origins, and :func:`persist.manifest.origins.verdict_of` decides by it. All modules are pure.
Start reading at ``origin_table``.
"""
