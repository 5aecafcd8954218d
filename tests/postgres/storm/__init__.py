"""A storm of random DDL and DML at a real source, with kills, and a copy that has to be equal.

    ``transactions`` draws from ``ddl``, ``families``, ``dml`` (with ``values``) over a ``model``
          │ done by ``sessions``                   ┌ ``kills`` replicator, daemon, server …
          ▼                                        ▼
       source ──────────────────────────▶ replicator ─▶ daemon
          └──────────────▶ ``judging`` ◀────────────────────┘       ``campaign`` drives it

A seed draws the same steps again. Every table has to be equal at the end of each round, or set
aside with a reason; what is silently different is the fault that is looked for. Run by ``python -m
tests.postgres.storm``.
"""
