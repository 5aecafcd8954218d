"""One module per table, each with ``NAME`` and ``run(bench) -> list[Table]``.

A module states what it measures and what it compares with; the measuring tools are outside.
"""

from __future__ import annotations

from tests.bench.tables import (
    ack,
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
    open_tables,
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
    sql,
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
    ack,
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
    open_tables,
    pushes,
    sql,
)
"""The tables in the order in which they are measured and shown."""
