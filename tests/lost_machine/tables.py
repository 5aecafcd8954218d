"""The tables of a campaign, and the daemon of each writer."""

from __future__ import annotations

from tests.crash.rows import TABLES, TableKind
from tests.lost_machine.clients import AT_DISK, BY_SPARK, SYNCED

SHARED = ("by_day", "plain")
KEYED = "keyed"
KEYED_KIND = {"partition_by": ("identity(host)",), "primary_key": ("host", "time", "writer")}
KINDS: tuple[TableKind, ...] = (
    *(table for table in TABLES if table.name in (*SHARED, KEYED)),
    TableKind(SYNCED, **KEYED_KIND),
    TableKind(BY_SPARK, **KEYED_KIND),
)
DISK_KIND = TableKind(AT_DISK, ("day(time)",))
AT_STORE = ("plain", KEYED)
"""Tables that are created at the level ``store``; writers to the others ask for it themselves."""
OWNERS = {KEYED: 0, SYNCED: 1, BY_SPARK: 2}
"""The daemon that each keyed table's writers use."""
SYNC, SPARK, DISK, KNOCKS, DISK_HOME = 5, 6, 8, 9, 1
"""The numbers of the clients that are no plain writers."""
RESENDS = (SYNC, SPARK)
"""Those that send again what was not answered."""
HOME_OF = {0: 0, 3: 0, 1: 1, 4: 1, SYNC: 1, DISK: DISK_HOME, 2: 2, SPARK: 2, 7: 2}
