"""Local copies of tables, which follow them: a version's files first, then the tail, then live.

    from ingester.followers import Follower, FollowerSink

    follower = Follower("grpc://127.0.0.1:8082", MySink)       # a sink for each table
    follower.follow("sensors", "readings")
    with follower:
        follower.run()

A copy goes through ``follower`` (which starts) ─▶ ``following`` (a table's thread) ─▶ ``versions``
(which version of the table is followed, and which are coming) ─▶ ``version_copy`` (the copy of one,
with its sink) ─▶ ``opening`` (from a state, or where to seek) ─▶ ``table_copy``, which knows three
steps: fill from a version's ``files`` (``filling``), resync with what they lack, and then live from
the ``feed``. ``applying`` does to the sink what a step took, and ``keeping`` keeps the state with
it. When the manifest has a later version than the ``copied_version``, ``fold`` says what that means
for the copy: mostly nothing, as its rows are here from the tail. ``state`` is what a copy knows of
itself, opaque to whoever keeps it: the sink in its own store, beside its rows, or the daemon
(``daemon_states``).

``sink`` is the interface of what keeps the rows; ``guard`` calls one, ``batches`` makes what it is
given. ``channel`` and ``asking`` are the ways between threads, ``progress`` counts, ``errors`` says
what went wrong. ``destination`` opens what a user names: DuckDB, a Parquet folder, or a class of
the user's own, which ``user_class`` finds and checks.

Into DuckDB: ``duckdb_sink`` keeps rows and states in one transaction of a ``duckdb_file``, which
readers may open in between. ``duckdb_catalog`` says what is in it beside the rows, ``duckdb_rows``
has the SQL on these, and ``duckdb_types`` which of DuckDB's types each of ours is. A reader opens
the file with ``duckdb_reader``.

Into Parquet: ``parquet_sink`` makes a folder for each transaction and points readers to it
(``parquet_commits``); ``parquet_files`` are rows with their groups in the footer.

A copy equals the table up to the position that its state names, or says that it does not. Nothing
here imports the daemon. Start reading at ``table_copy``.
"""

from ingester.followers.duckdb_reader import open_copy as open_copy
from ingester.followers.errors import (
    FellBehind as FellBehind,
)
from ingester.followers.errors import (
    FollowerError as FollowerError,
)
from ingester.followers.errors import (
    SinkFailed as SinkFailed,
)
from ingester.followers.errors import (
    StateDamaged as StateDamaged,
)
from ingester.followers.errors import (
    StateOfAnother as StateOfAnother,
)
from ingester.followers.errors import (
    TableReplaced as TableReplaced,
)
from ingester.followers.follower import Follower as Follower
from ingester.followers.following import Status as Status
from ingester.followers.opening import Seek as Seek
from ingester.followers.progress import Progress as Progress
from ingester.followers.sink import (
    AT as AT,
)
from ingester.followers.sink import (
    FROM_FILES as FROM_FILES,
)
from ingester.followers.sink import (
    PART as PART,
)
from ingester.followers.sink import (
    CheckpointStore as CheckpointStore,
)
from ingester.followers.sink import (
    FileRows as FileRows,
)
from ingester.followers.sink import (
    FollowedTable as FollowedTable,
)
from ingester.followers.sink import (
    FollowerSink as FollowerSink,
)
from ingester.followers.sink import (
    KeepsVersions as KeepsVersions,
)
from ingester.followers.sink import (
    Rows as Rows,
)
from ingester.followers.sink import (
    Run as Run,
)
from ingester.followers.sink import (
    StateKey as StateKey,
)
from ingester.followers.sink import (
    TakesBack as TakesBack,
)
from ingester.followers.sink import (
    TakesFiles as TakesFiles,
)
from ingester.followers.sink import (
    Transactional as Transactional,
)
from ingester.followers.version_copy import FollowOptions as FollowOptions
