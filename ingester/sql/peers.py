"""The rows that other daemons of the same store buffer, for daemons with ``sql.peers``.

    one snapshot here, of version V ─▶ at each peer: what V's files lack ─▶ a file without a name

A peer answers exactly what the files of V lack, as a snapshot after the call, so the answer has
each acknowledged row once. The rows are copied to disk first: a query reads a table as often as it
likes, and no peer waits for it. The copies are outside the workers' folders, which SQL can read. A
table with a primary key is complete at its owner. Peers are asked with the caller's token.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.flight as fl

from ingester.config.settings import SqlSettings, TlsSettings
from ingester.errors import BadRequest, Refused, limit_facts
from ingester.query.snapshot import Snapshot
from ingester.query.ticket import Ticket, encode_ticket
from ingester.schema.align import Aligner, projected
from persist.table import TableKey

TIMEOUT_S = 30.0
"""How long a peer may take for a table's rows."""
Fields = list[list[list[Any]]]


class Tail(NamedTuple):
    """A peer's rows of one table.

    Attributes:
        ingester_id: the peer.
        taken_version: see :class:`~ingester.query.snapshot.Snapshot`.
        rows: None without rows.
    """

    ingester_id: str
    taken_version: int
    rows: SpooledRows | None


@dataclass(frozen=True, slots=True)
class SpooledRows:
    """Rows in a file without a name, which the worker reads like those of a buffer.

    Attributes:
        file: the file's contents, mapped; the file ends with it.
    """

    file: pa.Buffer

    def read(
        self, columns: list[str], filter_: Fields | None, check_wanted: Callable[[], None]
    ) -> Iterator[pa.RecordBatch]:
        """Yield all rows in these columns; the filter is the worker's."""
        reader = pa.ipc.open_file(self.file)
        for place in range(reader.num_record_batches):
            check_wanted()
            yield reader.get_batch(place).select(columns)


class Peers:
    """The connections to other daemons. Thread-safe.

    Args:
        store_id: the store that all of them must have.
        folder: for copies of their rows.
    """

    def __init__(
        self, settings: SqlSettings, tls: TlsSettings, store_id: str, folder: Path
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._tls = tls
        self._store_id = store_id
        self._connections: dict[str, fl.FlightClient] = {}
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._settings.peers)

    def tails(
        self,
        table: TableKey,
        snapshot: Snapshot,
        authorization: str,
        check_wanted: Callable[[], None],
        missing: set[str] | None = None,
    ) -> list[Tail]:
        """Return what each peer has and the snapshot's files lack.

        Args:
            missing: gets the addresses of unreachable peers, which are left out; None refuses.

        Raises:
            Refused: a peer cannot be reached or refuses.
            BadRequest: the rows need more disk than ``sql.spill``, or a peer has another store.
        """
        found = []
        for address in self._settings.peers:
            try:
                tail = self._tail(address, table, snapshot, authorization, check_wanted)
            except (fl.FlightError, pa.ArrowException) as exc:
                self._forget(address)
                unreachable = isinstance(exc, fl.FlightUnavailableError | fl.FlightTimedOutError)
                if unreachable and missing is not None:
                    missing.add(address)
                    continue
                raise Refused(
                    f"daemon {address} (sql.peers) does not answer for {'.'.join(table)}:"
                    f" {str(exc).partition('. Detail:')[0]}",
                    retry_after_s=1.0,
                ) from exc
            found.append(tail)
        return found

    def _tail(
        self,
        address: str,
        table: TableKey,
        snapshot: Snapshot,
        authorization: str,
        check_wanted: Callable[[], None],
    ) -> Tail:
        asked = Ticket(
            *table,
            scope="buffered",
            version=snapshot.version,
            table_version=snapshot.table_version,
        )
        headers = [(b"authorization", authorization.encode())] if authorization else []
        options = fl.FlightCallOptions(timeout=TIMEOUT_S, headers=headers)
        reader = self._connection(address).do_get(fl.Ticket(encode_ticket(asked)), options)
        told = {key.decode(): value.decode() for key, value in reader.schema.metadata.items()}
        if told.get("store") != self._store_id:
            raise BadRequest(f"daemon {address} (sql.peers) writes to another store")
        definition = snapshot.definition
        aligned = Aligner(projected(definition.schema, None, definition.keyed))
        if unknown := set(reader.schema.names) - set(aligned.schema.names):
            raise Refused(f"columns are being added: {', '.join(unknown)}", retry_after_s=0.1)
        with NamedTemporaryFile(dir=self._folder) as file:
            rows = nbytes = 0
            with pa.ipc.new_file(file.name, aligned.schema) as writer:
                for chunk in reader:
                    check_wanted()
                    rows, nbytes = rows + chunk.data.num_rows, nbytes + chunk.data.nbytes
                    if nbytes > self._settings.spill:
                        raise BadRequest(
                            f"daemon {address} buffers more rows of {'.'.join(table)} than"
                            " sql.spill allows to copy: flush them first (ingester persist)",
                            details=limit_facts("sql.spill", self._settings.spill, nbytes),
                        )
                    writer.write_batch(aligned(chunk.data))
            with pa.memory_map(file.name) as mapped:
                spooled = SpooledRows(mapped.read_buffer()) if rows else None
        taken = int(told.get("taken_version", 0))
        return Tail(told.get("ingester_id", address), taken, spooled)

    def _connection(self, address: str) -> fl.FlightClient:
        with self._lock:
            found = self._connections.get(address)
            if found is None:
                found = self._connections[address] = fl.connect(address, **self._tls_arguments())
            return found

    def _forget(self, address: str) -> None:
        """Open a new connection for the next query: certificates may have changed."""
        with self._lock:
            self._connections.pop(address, None)

    def _tls_arguments(self) -> dict[str, bytes]:
        """Return the arguments of pyarrow's client: its own certificate is the daemon's."""
        arguments = {}
        if self._settings.peers_ca:
            arguments["tls_root_certs"] = Path(self._settings.peers_ca).read_bytes()
        if self._tls.cert and self._tls.client_ca:
            arguments["cert_chain"] = Path(self._tls.cert).read_bytes()
            arguments["private_key"] = Path(self._tls.key).read_bytes()
        return arguments
