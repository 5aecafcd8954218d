"""Publishes a table as a Delta table: one log for all versions of the table.

    step ─▶ ``actions`` ─▶ <number:020d>.json                    a commit
         └▶ ``checkpoint`` ─▶ <number:020d>.checkpoint.parquet   the whole table, now and then

The folder ``<namespace>/<table>`` is the Delta table, above the folders of its table versions, so a
switch is one commit. Delta's version is ``Place.number``. The log begins at the version that was
published first, with a checkpoint. The Delta table is not partitioned, because Delta has neither
buckets nor days of timestamps; statistics exclude files instead.

``table`` publishes and cleans up. ``log`` names the objects and finds the end of the log. All other
modules are pure: ``schema`` describes the columns, ``stats`` the files. Other writers are kept out
by a feature that only the ingester knows (``actions``), and a commit that came in anyhow stops
publishing. Start reading at ``table``.
"""

from persist.publish.delta.table import DeltaTable as DeltaTable
