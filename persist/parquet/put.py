"""Stores encoded files under new names, and returns the entries that a commit lists.

No other file has the same name, so a writer that dies before the commit, or writes twice, leaves
only garbage. The entry records what the encoder knows of the file.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Literal, Protocol

import pyarrow as pa

from persist.manifest import Add, PartitionKey
from persist.parquet.encode import EncodedFile
from persist.partitioning import folder_of
from persist.store import PutInfo
from persist.table import TableDefinition

FileKind = Literal["persist", "rewrite", "push"]


class FileStore(Protocol):
    """A place for files: one store, or several at once."""

    def put(self, path: str, data: pa.Buffer) -> PutInfo:
        """Store a file; return its size and its time by the store's clock."""
        ...


@dataclass(frozen=True, slots=True)
class FileOrigin:
    """The common properties of the files of one write: writer and partition.

    Attributes:
        definition: Of the table that the rows are laid out for.
        first_seq: With ``last_seq``, the operations of ``epoch`` whose rows the files have.
    """

    kind: FileKind
    writer: str
    definition: TableDefinition
    partition: PartitionKey
    epoch: int = 0
    first_seq: int = 0
    last_seq: int = 0

    @property
    def folder(self) -> str:
        """The partition's folder below ``data``; empty for an unpartitioned table."""
        spec_id, values = self.partition
        return folder_of(self.definition.spec_of(spec_id), values)

    def facts(self) -> dict[str, str]:
        """Metadata for people: whose rows an unlisted file has."""
        return {
            "ingester_id": self.writer,
            "spec_id": str(self.partition[0]),
            "partition": self.folder,
            "schema_id": str(self.definition.schema_id),
        }


def put_file(store: FileStore, root: str, file: EncodedFile, origin: FileOrigin) -> Add:
    """Store a file in a table version's folder, and return the entry for a commit.

    Args:
        root: That folder, without a final '/'; empty if the store begins there.

    Raises:
        StoreError: The store refused it.
    """
    name = f"{uuid.uuid4().hex}.parquet"
    path = "/".join(part for part in ("data", origin.folder, name) if part)
    put = store.put(f"{root}/{path}" if root else path, file.data)
    spec_id, values = origin.partition
    return Add(
        path=path,
        kind=origin.kind,
        rows=file.rows,
        bytes=file.data.size,
        spec_id=spec_id,
        values=values,
        stats=file.stats,
        writer=origin.writer,
        epoch=origin.epoch,
        first_seq=origin.first_seq,
        last_seq=origin.last_seq,
        schema_id=origin.definition.schema_id,
        at=put.at.isoformat(),
        footer_crc32c=file.footer_crc32c,
    )
