"""A storm of random DDL and DML at a real source, with kills; the copy must end equal.

    ``transactions`` draws from ``ddl``, ``families``, ``dml`` (with ``values``) over a ``model``
          │ run by ``sessions``                    ┌ ``kills`` replicator, daemon, server …
          ▼                                        ▼
       source ──────────────────────────▶ replicator ─▶ daemon
          └──────────────▶ ``judging`` ◀────────────────────┘       ``campaign`` drives it

A seed reproduces the steps. At the end of each round every table must be equal, or set aside
with a reason; a silent difference is a fault. Run by ``python -m tests.postgres.storm``.
"""
