"""One module per table, each with ``NAME`` and ``run(bench) -> list[Table]``.

Law of this package: a module measures, and says beside what; what it measures with is outside.
"""

from __future__ import annotations

from tests.bench.tables import (
    beside,
    checkpoints,
    durability,
    filters,
    followers,
    growth,
    ingest,
    limits,
    manifest,
    memory,
    partitions,
    peers,
    persist,
    postgres_copy,
    postgres_load,
    pushes,
    query,
    readers,
    replay,
    replication,
    security,
    spark,
    sustained,
    tracing,
    visible,
)

IN_ORDER = (
    limits,
    ingest,
    checkpoints,
    partitions,
    durability,
    sustained,
    peers,
    visible,
    query,
    filters,
    readers,
    persist,
    beside,
    memory,
    replay,
    replication,
    postgres_copy,
    postgres_load,
    followers,
    security,
    tracing,
    manifest,
    growth,
    spark,
    pushes,
)
"""As they are measured and shown.
"""
