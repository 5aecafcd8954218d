"""Engines in processes of their own, because they need other packages than the project.

A process reads one JSON request a line from standard input, writes the rows to an Arrow file and
answers with one JSON line. It ends when its input is closed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from persist.publish.format import FormatName
from tests.open_tables.engines import Place
from tests.open_tables.terms import Dialect, Terms, sql

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ROOT / ".venv" / "open_tables"
SPARKS = ROOT / ".venv" / "spark"
Read = Callable[[dict[str, Any]], pa.Table]


class EngineFailed(Exception):
    """An engine refused a read, or failed; the message is its own."""


class EngineProcess:
    """An engine behind a pipe; use it in ``with``."""

    def __init__(
        self,
        name: str,
        module: str,
        packages: Path,
        dialect: Dialect,
        formats: tuple[FormatName, ...] = ("iceberg", "delta"),
        environment: dict[str, str] | None = None,
    ) -> None:
        self.name = name
        self.formats = formats
        self._dialect = dialect
        self._folder = tempfile.TemporaryDirectory()
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(packages), **(environment or {})},
        )

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()
        self._folder.cleanup()

    def rows(self, place: Place, version: int | None = None, terms: Terms = ()) -> pa.Table:
        """See :class:`tests.open_tables.engines.Engine`."""
        answer = self.ask(**asdict(place), version=version, where=sql(terms, self._dialect))
        with pa.memory_map(answer["file"]) as source:
            return pa.ipc.open_file(source).read_all()

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and return the answer.

        Raises:
            EngineFailed: the engine failed.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        file = str(Path(self._folder.name) / "rows.arrow")
        self._process.stdin.write(json.dumps({**request, "file": file}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise EngineFailed(f"{self.name} ended with code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EngineFailed(answer["error"])
        return answer


def serve(read: Callable[[dict[str, Any]], pa.Table | dict[str, Any]]) -> None:
    """Answer requests with what ``read`` returns; the other side of :class:`EngineProcess`."""
    # Libraries print to standard output, which is for answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            found = read(request)
            if isinstance(found, pa.Table):
                with pa.ipc.new_file(request["file"], found.schema) as writer:
                    writer.write_table(found)
                found = {"file": request["file"], "rows": found.num_rows}
        except Exception as exc:
            found = {"error": f"{type(exc).__name__}: {exc}"[:2000]}
            if os.environ.get("OPEN_TABLES_VERBOSE"):
                traceback.print_exc()
        answers.write(json.dumps(found) + "\n")
        answers.flush()


def duckdb() -> EngineProcess | None:
    """DuckDB with its extensions for open tables; None if ``make open-duckdb`` has not run."""
    packages = FOLDERS / "duckdb"
    if not (packages / ".installed").exists():
        return None
    return EngineProcess("duckdb", "tests.open_tables.duckdb_process", packages, "duckdb")


def spark(version: str) -> EngineProcess | None:
    """A Spark version with Iceberg's and Delta's jars; None if ``make open-tables`` has not run."""
    packages = SPARKS / version
    if not (packages / ".installed").exists():
        return None
    return EngineProcess(f"spark {version}", "tests.open_tables.spark_process", packages, "spark")
