"""Minimal Flight servers: upper bounds of a server that also logs, sorts and answers queries.

    discard   reads a batch, answers, discards it       the limit of Flight itself
    keep      the same, and appends it to a list        the limit of a server that buffers
    log       the same, and one plain append + sync     the cost of a simple log
    stream    sends the same batches repeatedly         the limit of a query
    dataset   sends what pyarrow.dataset reads          the same files read the same way

Like the daemon, each server answers batches one by one, in order, after taking them, so that the
same client can drive all of them. Only "log" is durable.
"""

from __future__ import annotations

import os
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.flight as fl

from tests.bench.children import Child, exit_with_parent
from tests.bench.rows import SCHEMA, batches_of

Kind = Literal["keep", "log", "discard", "stream", "dataset"]
_ANSWER = b'{"accepted":true,"sequence":1,"epoch":1}'


class _Writes(fl.FlightServerBase):  # type: ignore[misc]
    def __init__(
        self, *, keeps: bool, log: Path | None, certificate: tuple[Path, Path] | None
    ) -> None:
        if certificate is None:
            super().__init__("grpc://127.0.0.1:0")
        else:
            pair = (certificate[0].read_bytes(), certificate[1].read_bytes())
            super().__init__("grpc+tls://127.0.0.1:0", tls_certificates=[pair])
        self._keeps = keeps
        self._kept: list[pa.RecordBatch] = []
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) if log else None

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Take batches and answer each."""
        answer = pa.py_buffer(_ANSWER)
        while True:
            try:
                batch = reader.read_chunk().data
            except StopIteration:
                return
            if self._keeps:
                self._kept.append(batch)
            if self._log is not None:
                os.write(self._log, batch.serialize())
                os.fdatasync(self._log)
            writer.write(answer)


class _Reads(fl.FlightServerBase):  # type: ignore[misc]
    def __init__(self, batches: list[pa.RecordBatch]) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._batches = batches

    def do_get(self, context: Any, ticket: Any) -> fl.RecordBatchStream:
        """Send everything, without Python code per batch."""
        return fl.RecordBatchStream(pa.RecordBatchReader.from_batches(SCHEMA, self._batches))


class _Files(fl.FlightServerBase):  # type: ignore[misc]
    def __init__(self, folder: str) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._folder = Path(folder)

    def do_get(self, context: Any, ticket: Any) -> fl.RecordBatchStream:
        """Send all rows of the existing files."""
        files = sorted(str(path) for path in self._folder.rglob("*.parquet"))
        return fl.RecordBatchStream(ds.dataset(files).scanner().to_reader())


def _serve(
    pipe: Connection,
    kind: Kind,
    rows: int,
    batch_rows: int,
    folder: str,
    certificate: tuple[Path, Path] | None,
) -> None:
    if kind == "dataset":
        server: fl.FlightServerBase = _Files(folder)
    elif kind == "stream":
        server = _Reads(batches_of(rows, batch_rows, seed=0))
    else:
        log = Path(folder) / "log" if kind == "log" else None
        server = _Writes(keeps=kind != "discard", log=log, certificate=certificate)
    scheme = "grpc" if certificate is None else "grpc+tls"
    pipe.send(f"{scheme}://127.0.0.1:{server.port}")
    exit_with_parent(pipe)
    server.serve()


class Rival:
    """One of the servers above, in its own process."""

    def __init__(
        self,
        kind: Kind,
        *,
        rows: int = 0,
        batch_rows: int = 1,
        folder: str = "",
        certificate: tuple[Path, Path] | None = None,
    ) -> None:
        """Start the server; it serves once entered.

        ``rows`` and ``batch_rows`` define the data of "stream", ``folder`` the place of files.
        With the files of a certificate and its key, a server that accepts writes uses TLS.
        """
        self._child = Child(_serve, kind, rows, batch_rows, folder, certificate)
        self.pid = self._child.pid
        self.flight: str

    def __enter__(self) -> Rival:
        self.flight = self._child.receive()
        return self

    def __exit__(self, *_: object) -> None:
        self._child.end()
