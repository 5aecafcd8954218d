"""Publishes a table's versions in open formats: Iceberg snapshots and Delta versions.

    manifest ─▶ ``publisher`` ─▶ steps ─▶ ``iceberg``   metadata/v<k>.metadata.json, manifests
                    │                 └─▶ ``delta``     _delta_log/<number>.json, checkpoints
                    └─ ``numbering``: one number per version, rising over switches

No data file is read, written or copied: only metadata is. It is written behind the commit, by any
number of publishers, which may stop between any two steps; the next one continues.

``steps`` are the values that the formats get: what one manifest version changed, and the table
after it. ``format`` is what both formats promise. ``publisher`` follows a table's manifest and
hands the steps to each format; what one of them cannot express does not hinder the other.
``numbering`` numbers the versions.

``listing`` finds the published tables of a store. ``registration`` keeps an existing Iceberg
catalogue up to date.

Nothing is ever read back from published metadata but where publishing stopped. Metadata that is not
the ingester's stops publishing of that table and is left as it is. Start reading at ``publisher``.
"""
