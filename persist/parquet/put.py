"""Encoded files on their way into a table version: put under fresh names, listed as they are.

Law of this file: nobody else has a file's name, so whoever dies before the commit, or writes twice,
leaves garbage for clean-up and nothing else. The manifest says of a file what its encoder knows.
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
    """A place that takes files: a store, or several at once."""

    def put(self, path: str, data: pa.Buffer) -> PutInfo:
        """Put a file there, and return its size and its time by the store's clock."""
        ...


@dataclass(frozen=True, slots=True)
class FileOrigin:
    """What the files of one write have in common: whose they are, and the partition's.

    Attributes:
        definition: Of the table that their rows are laid out for.
        first_seq: The first and the last operation whose rows they have, of those of ``epoch``.
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
        """The partition's folder, below ``data``; empty where the table has no partitions."""
        spec_id, values = self.partition
        return folder_of(self.definition.spec_of(spec_id), values)

    def facts(self) -> dict[str, str]:
        """The metadata of a file's footer, for people: whose rows a file has that nobody lists."""
        return {
            "ingester_id": self.writer,
            "spec_id": str(self.partition[0]),
            "partition": self.folder,
            "schema_id": str(self.definition.schema_id),
        }


def put_file(store: FileStore, root: str, file: EncodedFile, origin: FileOrigin) -> Add:
    """Put a file into a table version's folder, and return what a commit has to list.

    Args:
        root: That folder, without a final '/'; empty where the store begins there.

    Raises:
        StoreError: The store does not take it.
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
