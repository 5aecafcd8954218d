"""Reads with DuckDB 1.5 and its extensions; started by ``processes`` with another DuckDB."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from tests.open_tables.processes import serve


def connect() -> Any:
    """A connection with the extensions loaded from their packages."""
    connection = duckdb.connect(config={"threads": 2})
    packages = Path(duckdb.__file__).parents[1]
    for name in ("avro", "httpfs", "iceberg", "delta"):
        (file,) = (packages / f"duckdb_extension_{name}").rglob("*.duckdb_extension")
        connection.load_extension(str(file))
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def _shown(value: Any) -> Any:
    """A value as JSON has it."""
    return value if isinstance(value, int | float) else str(value)


class Reader:
    """Reads by the functions ``iceberg_scan`` and ``delta_scan``, or runs a query."""

    def __init__(self) -> None:
        self._connection = connect()
        self._known: set[str] = set()

    def read(self, request: dict[str, Any]) -> pa.Table | dict[str, Any]:
        if s3 := request.get("s3"):
            self._use(s3)
        if (asked := request.get("measure")) is not None:
            names = ", ".join(f"'{path.removeprefix('file://')}'" for path in request["paths"])
            source = {
                "iceberg": f"iceberg_scan({names})",
                "delta": f"delta_scan({names})",
                "parquet": f"read_parquet([{names}], hive_partitioning => false)",
            }[request["format"]]
            began = time.perf_counter()
            rows = self._connection.sql(f"SELECT {', '.join(asked)} FROM {source}").fetchall()
            seconds = time.perf_counter() - began
            return {
                "rows": [dict(zip(asked, map(_shown, rows[0]), strict=True))],
                "seconds": seconds,
            }
        if (query := request.get("query")) is not None:
            for each in request.get("before", ()):
                self._connection.execute(each)
            return {"rows": self._connection.sql(query).to_arrow_table().to_pylist()}
        version, path = request["version"], request["url"].removeprefix("file://")
        if request["format"] == "iceberg":
            which = "" if version is None else f", snapshot_from_id => {version}"
            source = f"iceberg_scan('{path}'{which})"
        else:
            which = "" if version is None else f", version => {version}"
            source = f"delta_scan('{path}'{which})"
        return self._connection.sql(
            f"SELECT * FROM {source} WHERE {request['where']}"
        ).to_arrow_table()

    def _use(self, s3: dict[str, str]) -> None:
        endpoint = s3["endpoint_url"].removeprefix("http://")
        if endpoint not in self._known:
            self._connection.execute(
                f"CREATE SECRET s{len(self._known)} (TYPE s3, KEY_ID '{s3['key']}', SECRET"
                f" '{s3['secret']}', REGION '{s3['region']}', ENDPOINT '{endpoint}', USE_SSL false,"
                " URL_STYLE 'path')"
            )
            self._known.add(endpoint)


if __name__ == "__main__":
    serve(Reader().read)
