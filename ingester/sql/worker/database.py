"""A locked-down DuckDB for one query.

Refused afterwards: every file but those of the query's own tables, ATTACH, COPY, extensions,
secrets and settings (tests/sql/test_lock_down.py). A database is made ahead and used once, so one
query leaves nothing for the next one.
"""

from __future__ import annotations

from collections.abc import Sequence

import duckdb

from ingester.sql.wire import WorkerLimits
from ingester.sql.worker.views import CATALOG, quoted, text

_OFF = (
    "autoload_known_extensions",
    "autoinstall_known_extensions",
    "allow_community_extensions",
    "python_enable_replacements",
)


def new_database(limits: WorkerLimits) -> duckdb.DuckDBPyConnection:
    """Return an empty database within the limits, not yet locked."""
    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": f"{limits.memory}B",
        "temp_directory": limits.spill_folder,
        "max_temp_directory_size": f"{limits.spill}B",
        **dict.fromkeys(_OFF, False),
    }
    if limits.threads:
        config["threads"] = limits.threads
    connection = duckdb.connect(":memory:", config=config)
    connection.execute(
        f"ATTACH ':memory:' AS {CATALOG}; USE {CATALOG}; SET TimeZone = 'UTC';"
        # An SQL table has no order; keeping one costs memory.
        " SET preserve_insertion_order = false"
    )
    return connection


def lock(connection: duckdb.DuckDBPyConnection, paths: Sequence[str] = ()) -> None:
    """Close a database to everything but these files, for good."""
    if paths:
        connection.execute(f"SET allowed_paths = [{', '.join(map(text, paths))}]")
    connection.execute("SET enable_external_access = false; SET lock_configuration = true")


def use_namespace(connection: duckdb.DuckDBPyConnection, namespace: str) -> None:
    """Create a namespace and look names without one up there."""
    connection.execute(
        f"CREATE SCHEMA IF NOT EXISTS {quoted(CATALOG)}.{quoted(namespace)};"
        f" USE {quoted(CATALOG)}.{quoted(namespace)}"
    )
