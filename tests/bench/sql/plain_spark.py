"""Spark over the same Parquet files: a session of two cores, started once for both data sets."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.bench.sql.plain_duckdb import Answered


class PlainSpark:
    """A local session; use it in ``with``."""

    def __init__(self) -> None:
        from ingester.spark.session import local_session

        self._session = local_session("ingester benchmark", cores=2, shuffle_partitions=2)

    def __enter__(self) -> PlainSpark:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.stop()

    def use_files(self, files: Mapping[str, Sequence[Path]]) -> None:
        """Read each table from these Parquet files."""
        for name, paths in files.items():
            frame = self._session.read.parquet(*(f"file://{path}" for path in paths))
            frame.createOrReplaceTempView(name)

    def ask(self, query: str) -> Answered:
        """Run a query; the answer comes as an Arrow table."""
        began = time.perf_counter()
        # The name of the type of instants in Spark's SQL.
        table = self._session.sql(query.replace("TIMESTAMPTZ", "TIMESTAMP")).toArrow()
        return Answered(time.perf_counter() - began, table.num_rows)
