"""A follower in its own process, which runs until it is killed.

python -m tests.followers.follower_process ENDPOINT FILE NAMESPACE/TABLE …
"""

from __future__ import annotations

import sys
from pathlib import Path

from ingester.followers import Follower, FollowOptions
from ingester.followers.duckdb_sink import DuckDBDatabase


def main(endpoint: str, file: str, *tables: str) -> None:
    """Follow the tables until the process ends."""
    database = DuckDBDatabase(Path(file))
    options = FollowOptions(wait_s=1.0, room=1, connect_s=60.0)
    follower = Follower(endpoint, database.sink, options=options)
    for table in tables:
        namespace, name = table.split("/")
        follower.follow(namespace, name)
    with follower:
        follower.wait_current()
        print("current", flush=True)
        follower.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
