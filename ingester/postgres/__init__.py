"""Replicates PostgreSQL's tables: a first copy, then what its write-ahead log says of their rows.

    publication, slot ──▶ output ──▶ collecting ──▶ sync messages ──▶ daemon
           ▲                                                            │
           └───────── the slot advances by durable sequences ◀──────────┘

Started as ``ingester replicate postgres``; needs ``ingester[postgres]``.
"""
