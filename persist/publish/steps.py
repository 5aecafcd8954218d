"""The steps of a table's history that are published: one per manifest version. Pure values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from persist.manifest import Add, TableState
from persist.table import TableDefinition, TableKey


class OpenFile(NamedTuple):
    """A data file of a published table.

    Attributes:
        path: below the table's folder, as it is in the store: ``v1/data/time_day=…/….parquet``.
            Folder names are percent-encoded once, as everywhere in the store.
    """

    path: str
    add: Add


class Place(NamedTuple):
    """A manifest version, and its number among all published versions of the table.

    Attributes:
        number: equals ``version`` in a table that was never switched. It rises by one with each
            manifest version and keeps rising over switches.
        table_version: the table's version as a whole, ``v1``, ``v2``, …
        version: of the manifest of that table version.
        uid: of that manifest version.
    """

    number: int
    table_version: int
    version: int
    uid: str


@dataclass(frozen=True, slots=True)
class Step:
    """What one manifest version changed, and the table after it.

    Attributes:
        at_ms: when it was committed, by the store's clock, in milliseconds since 1970.
        added: files that became part of the table, in order of their commit.
        removed: files that no longer are. A file is never in both.
        complete: ``added`` is the whole table and ``removed`` is empty: nothing that was
            published before is part of it. True of the first step ever published.
        rearranged: the rows are the same in other files (compaction).
        state: the table at this version.
        definition: its columns, partitions and key.
    """

    place: Place
    at_ms: int
    added: tuple[OpenFile, ...]
    removed: tuple[OpenFile, ...]
    rearranged: bool
    state: TableState
    definition: TableDefinition
    complete: bool = False

    @property
    def root(self) -> str:
        """The folder of the table version below the table's folder: ``v1``."""
        return f"v{self.place.table_version}"

    def files(self) -> list[OpenFile]:
        """All files of the table at this step."""
        return [OpenFile(f"{self.root}/{path}", add) for path, add in self.state.files.items()]


def joined(first: Step, second: Step) -> Step:
    """Two steps that follow each other as one, at the place of the second.

    A file that the first adds and the second removes is in neither list.
    """
    if second.complete:
        return second
    gone = {file.path for file in second.removed}
    new = {file.path for file in first.added}
    return replace(
        second,
        added=(*(file for file in first.added if file.path not in gone), *second.added),
        removed=(*first.removed, *(file for file in second.removed if file.path not in new)),
        rearranged=first.rearranged and second.rearranged,
        complete=first.complete,
    )


class NotPublishable(Exception):
    """A format cannot express the table; the message names each column and what helps."""

    def __init__(self, format: str, key: TableKey, reasons: tuple[str, ...]) -> None:
        told = "; ".join(reasons)
        super().__init__(f"table {key[0]}/{key[1]} cannot be published as {format}: {told}")
        self.format, self.key, self.reasons = format, key, reasons


class ForeignCommit(Exception):
    """Something that the ingester did not publish is in the table's metadata; nothing is changed.

    The message names the object, and what an operator can do.
    """

    def __init__(self, format: str, key: TableKey, path: str, told: str) -> None:
        super().__init__(
            f"table {key[0]}/{key[1]} is no longer published as {format}: {path} {told}"
        )
        self.format, self.key, self.path = format, key, path


class Overtaken(Exception):
    """Another publisher was faster: read the head again, and continue from there."""
