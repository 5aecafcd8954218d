"""Local copies of tables, which follow them: a version's files first, then the tail, then live.

    from ingester.client.follower import Follower, FollowerSink

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

from ingester.client.follower.duckdb_reader import open_copy as open_copy
from ingester.client.follower.errors import (
    FellBehind as FellBehind,
)
from ingester.client.follower.errors import (
    FollowerError as FollowerError,
)
from ingester.client.follower.errors import (
    SinkFailed as SinkFailed,
)
from ingester.client.follower.errors import (
    StateDamaged as StateDamaged,
)
from ingester.client.follower.errors import (
    StateOfAnother as StateOfAnother,
)
from ingester.client.follower.errors import (
    TableReplaced as TableReplaced,
)
from ingester.client.follower.follower import Follower as Follower
from ingester.client.follower.following import Status as Status
from ingester.client.follower.opening import Seek as Seek
from ingester.client.follower.progress import Progress as Progress
from ingester.client.follower.sink import (
    AT as AT,
)
from ingester.client.follower.sink import (
    FROM_FILES as FROM_FILES,
)
from ingester.client.follower.sink import (
    PART as PART,
)
from ingester.client.follower.sink import (
    CheckpointStore as CheckpointStore,
)
from ingester.client.follower.sink import (
    FileRows as FileRows,
)
from ingester.client.follower.sink import (
    FollowedTable as FollowedTable,
)
from ingester.client.follower.sink import (
    FollowerSink as FollowerSink,
)
from ingester.client.follower.sink import (
    KeepsVersions as KeepsVersions,
)
from ingester.client.follower.sink import (
    Rows as Rows,
)
from ingester.client.follower.sink import (
    Run as Run,
)
from ingester.client.follower.sink import (
    StateKey as StateKey,
)
from ingester.client.follower.sink import (
    TakesBack as TakesBack,
)
from ingester.client.follower.sink import (
    TakesFiles as TakesFiles,
)
from ingester.client.follower.sink import (
    Transactional as Transactional,
)
from ingester.client.follower.version_copy import FollowOptions as FollowOptions
