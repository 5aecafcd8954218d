"""Changes of rows, as a replication client sends them: insert, update, delete, move.

rows of messages ── Changes ──▶ fold ──▶ Folded: one change per key, and where it comes from
"""
