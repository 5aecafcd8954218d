"""Spark in a process of its own: writes rows of the campaign, and reads tables at the end.

    with SparkProcess(folder, url, storage_options) as spark:
        spark.append("by_spark", (6, 0, 100), "grpc://…", {"txn_app_id": "a", "txn_version": "0"})
        spark.read("by_spark")

The process obeys one JSON object per line of its standard input.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from tests.crash.reading import COLUMNS, ROOT, SparkFailed
from tests.crash.rows import NAMESPACE, batch_of


class SparkProcess:
    """The process, which starts its session at once; calls wait for it."""

    def __init__(self, folder: Path, url: str, storage_options: Mapping[str, Any]) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._stderr = folder / "spark.stderr"
        with self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    __name__,
                    str(folder),
                    url,
                    json.dumps(dict(storage_options)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                cwd=ROOT,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def append(
        self,
        table: str,
        rows: tuple[int, int, int],
        endpoint: str,
        options: Mapping[str, str],
    ) -> str | None:
        """Write rows (writer, start, count) to a table; return the error, if any."""
        order = {"do": "append", "table": table, "rows": rows}
        answer = self._ask({**order, "options": {**options, "endpoint": endpoint}})
        error: str | None = answer["error"]
        return error

    def read(self, table: str) -> pa.Table:
        """Read all rows in files.

        Raises:
            SparkFailed: Spark could not read the table.
        """
        if error := self._ask({"do": "read", "table": table})["error"]:
            raise SparkFailed(error)
        return pq.read_table(self._folder / f"{table}.parquet")

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            try:
                self._process.stdin.write(json.dumps(order) + "\n")
                self._process.stdin.flush()
                line = self._process.stdout.readline()
            except OSError:
                line = ""
            if not line:
                raise SparkFailed(self._stderr.read_text(errors="replace")[-4000:])
            answer: dict[str, Any] = json.loads(line)
            return answer


def _serve(folder: Path, url: str, storage_options: dict[str, Any]) -> None:
    from ingester.spark import read_table, register
    from ingester.spark.session import local_session

    spark = local_session("lost machine", cores=2, shuffle_partitions=2)
    register(spark)
    stores = {f"store_options.{name}": str(value) for name, value in storage_options.items()}
    for line in sys.stdin:
        order, error = json.loads(line), None
        try:
            if order["do"] == "append":
                frame = spark.createDataFrame(pa.Table.from_batches([batch_of(*order["rows"])]))
                writer = frame.coalesce(1).write.format("ingester").mode("append")
                writer = writer.options(**order["options"], **stores)
                writer.save(f"{url}/{NAMESPACE}/{order['table']}")
            else:
                found = read_table(
                    spark, url, NAMESPACE, order["table"], store_options=storage_options
                )
                rows = found.select(*COLUMNS).toArrow()
                pq.write_table(rows, folder / f"{order['table']}.parquet")
        except Exception as exc:
            error = f"{type(exc).__name__}: {exc}"[:2000]
        print(json.dumps({"error": error}), flush=True)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
