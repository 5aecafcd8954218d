"""DuckDB in a process of its own: over Parquet files, or over Arrow tables in its memory.

It has two threads and keeps its connection. It times a query from the call to the answer as an
Arrow table.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from tests.bench.children import Child, answer_commands
from tests.bench.sql.queries import data_set

NICE = 10


class Answered(NamedTuple):
    """The seconds of a query, and the number of rows of its answer."""

    seconds: float
    rows: int


class _DuckDB:
    """The child's side."""

    def __init__(self) -> None:
        import duckdb

        # The daemon's queries have the same priority, which matters on a busy machine.
        os.nice(NICE)
        self._connection = duckdb.connect(config={"threads": 2})
        self._connection.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
        self._registered: list[str] = []

    def act(self, message: tuple[str, int] | dict[str, list[str]] | str) -> Answered | None:
        if isinstance(message, str):
            began = time.perf_counter()
            table = self._connection.sql(message).to_arrow_table()
            return Answered(time.perf_counter() - began, table.num_rows)
        for name in self._registered:
            self._connection.unregister(name)
        self._registered = []
        if isinstance(message, dict):
            for name, files in message.items():
                self._connection.execute(
                    f"CREATE OR REPLACE VIEW {name} AS"
                    f" FROM read_parquet({files}, hive_partitioning = false)"
                )
            return None
        for name, make in data_set(*message).tables.items():
            self._connection.register(name, pa.Table.from_batches(make()))
            self._registered.append(name)
        return None


def _main(pipe: Connection) -> None:
    answer_commands(pipe, _DuckDB().act)


class PlainDuckDB:
    """DuckDB over the same rows; use it in ``with``."""

    def __init__(self) -> None:
        self._child = Child(_main)

    def __enter__(self) -> PlainDuckDB:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.end()

    def use_arrow(self, name: str, rows: int) -> None:
        """Make the tables of a data set in its memory."""
        self._ask((name, rows))

    def use_files(self, files: Mapping[str, Sequence[Path]]) -> None:
        """Read each table from these Parquet files."""
        self._ask({name: [str(path) for path in paths] for name, paths in files.items()})

    def ask(self, query: str) -> Answered:
        """Run a query."""
        found = self._ask(query)
        assert isinstance(found, Answered)
        return found

    def _ask(self, message: object) -> object:
        self._child.send(message)
        return self._child.receive()
