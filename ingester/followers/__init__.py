"""Local copies of tables that follow their source: files of a version, then the tail, then live.

    from ingester.followers import Follower, FollowerSink

    follower = Follower("grpc://127.0.0.1:8082", MySink)       # one sink per table
    follower.follow("sensors", "readings")
    with follower:
        follower.run()

The path of a row, module by module: ``follower`` starts a thread per table. ``versions`` chooses
the table version to follow and prepares coming ones. ``version_copy`` opens the copy of one version
with its sink. ``followed_copy`` advances it: fill from the ``files`` of a manifest version, resync
with what they lack, then live from the ``feed``.
``applying`` writes rows to the sink. When the manifest has a later version, ``fold`` plans what
that means for the copy: usually nothing, because its rows arrived live.

``sink`` is the interface of what keeps the rows. ``place`` calls a sink and stores the ``state``
with the rows: in the sink, or at the daemon. ``errors`` are the errors of followers.
``destination`` opens DuckDB, a Parquet folder, or a user's class by name.

``duckdb_sink`` keeps rows and states in one transaction of a ``duckdb_file``, which readers open
in between; ``duckdb_catalog`` is the layout of that file and its types, ``duckdb_times`` refuses
times that DuckDB cannot keep. ``parquet_sink`` makes a folder per transaction and points readers to
it; ``parquet_commits`` is the layout of the folder.

A copy equals the table up to the position in its state, or reports that it does not. Nothing here
imports the daemon. Start reading at ``followed_copy``.
"""

from .applying import CopyProgress
from .duckdb_file import open_copy
from .errors import (
    FellBehind,
    FollowerError,
    SinkFailed,
    StateDamaged,
    StateOfAnother,
    TableReplaced,
)
from .follower import CopyStatus, Follower
from .sink import (
    AT,
    FROM_FILES,
    PART,
    CheckpointStore,
    FileRows,
    FollowedTable,
    FollowerSink,
    KeepsVersions,
    Rows,
    Run,
    StateKey,
    TakesBack,
    TakesFiles,
    Transactional,
)
from .version_copy import FollowOptions, Seek

__all__ = [
    "AT",
    "FROM_FILES",
    "PART",
    "CheckpointStore",
    "CopyProgress",
    "CopyStatus",
    "FellBehind",
    "FileRows",
    "FollowOptions",
    "FollowedTable",
    "Follower",
    "FollowerError",
    "FollowerSink",
    "KeepsVersions",
    "Rows",
    "Run",
    "Seek",
    "SinkFailed",
    "StateDamaged",
    "StateKey",
    "StateOfAnother",
    "TableReplaced",
    "TakesBack",
    "TakesFiles",
    "Transactional",
    "open_copy",
]
