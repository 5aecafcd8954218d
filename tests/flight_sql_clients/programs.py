"""Starts the clients that ``make flight-sql`` fetches into ``.venv/flight_sql``."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyspark
import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

FOLDER = Path(__file__).resolve().parents[2] / ".venv" / "flight_sql"
GO = "client"
JDBC = "flight-sql-jdbc-driver-*.jar"


def need(pattern: str) -> Path:
    """Return the file of that name in ``FOLDER``, or skip the test."""
    file = next(FOLDER.glob(pattern), None)
    if file is None:
        pytest.skip(f"{pattern} is not in .venv/flight_sql: make flight-sql")
    return file


class Failure(NamedTuple):
    """An error as a Go program sees it.

    Attributes:
        status: the status of ADBC, such as ``InvalidArgument``; empty for the client of Arrow.
        grpc: the status of gRPC, such as ``InvalidArgument``; empty for ADBC.
    """

    message: str
    status: str = ""
    sqlstate: str = ""
    grpc: str = ""


class GoFailed(Exception):
    """Raised when an operation of the Go program fails."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Answer(NamedTuple):
    """What an operation returns; most set one of the attributes."""

    table: pa.Table | None = None
    rows: int | None = None
    text: str = ""
    failure: Failure | None = None


class GoClient:
    """The program in ``go``; use it in ``with``."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [need(GO)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> GoClient:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def answer(self, operation: str, **arguments: Any) -> Answer:
        """Run an operation; a table among the arguments is sent as an Arrow stream.

        Raises:
            GoFailed: the operation failed.
        """
        for name, value in arguments.items():
            if isinstance(value, pa.Table):
                arguments[name] = base64.b64encode(_stream(value)).decode()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"op": operation, **arguments}) + "\n")
        self._process.stdin.flush()
        told = json.loads(self._process.stdout.readline())
        failure = Failure(**told["error"]) if "error" in told else None
        if failure is not None and "rows" not in told:
            raise GoFailed(failure)
        table = None
        if "data" in told:
            table = pa.ipc.open_stream(base64.b64decode(told["data"])).read_all()
        return Answer(table, told.get("rows"), told.get("text", ""), failure)

    def table(self, operation: str, **arguments: Any) -> pa.Table:
        """Run an operation that returns a table."""
        table = self.answer(operation, **arguments).table
        assert table is not None, operation
        return table

    def refused(self, operation: str, **arguments: Any) -> Failure:
        """Run an operation that fails, and return its error."""
        with pytest.raises(GoFailed) as failed:
            self.answer(operation, **arguments)
        return failed.value.failure


def jvm() -> JavaGateway:
    """Start a JVM with the JDBC driver; it ends when the gateway is shut down, or with us."""
    (py4j,) = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
    port, token = launch_gateway(
        jarpath=str(py4j),
        classpath=str(need(JDBC)),
        javaopts=[
            "--add-opens=java.base/java.nio=ALL-UNNAMED",
            "-Duser.timezone=UTC",
            "-XX:TieredStopAtLevel=1",
            "-XX:+UseSerialGC",
            "-Xmx512m",
        ],
        die_on_exit=True,
        enable_auth=True,
    )
    parameters = GatewayParameters(port=port, auth_token=token)
    return JavaGateway(gateway_parameters=parameters)


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())
