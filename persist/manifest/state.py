"""A table at one version, as an immutable value. Pure.

A ``TableState`` never changes; a new state shares the unchanged parts, so holding an old version
costs little, and any thread may read one. ``draft.apply`` makes the next state from actions;
``actions`` makes actions from a state.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, overload

from immutables import Map

from persist.manifest.actions import (
    Action,
    Add,
    Applied,
    AppliedKey,
    CheckpointAction,
    EpochComplete,
    Horizon,
    Imported,
    OriginAction,
    Owner,
    PartitionKey,
    Properties,
    Schema,
    Sealed,
    SequenceContent,
    SharedState,
    Spec,
    Txn,
    Values,
    WriterAction,
)

FileRun = tuple[Add, ...]


class FileRuns(Sequence[Add]):
    """The files of one partition in the order they were committed; equal to any sequence of the
    same files.

    Appending a few files costs about as much as the few, however many exist: runs are shared
    between states, and each run has at least twice as many files as the next, so a file is copied a
    logarithmic number of times::

        add 1, add 1, add 1, add 1      [a]   [a b]   [a b][c]   [a b c d]
    """

    __slots__ = ("_length", "runs")

    def __init__(self, runs: tuple[FileRun, ...] = ()) -> None:
        """Take ``runs`` that are not empty, each at least twice as long as the next."""
        self.runs = runs
        self._length = sum(map(len, runs))

    def and_then(self, adds: Iterable[Add]) -> FileRuns:
        """The files of this sequence followed by the given ones."""
        last = tuple(adds)
        if not last:
            return self
        runs = list(self.runs)
        while runs and len(runs[-1]) < 2 * len(last):
            last = runs.pop() + last
        return FileRuns((*runs, last))

    def without(self, paths: Collection[str]) -> FileRuns:
        """The files of this sequence except some; walks all of them."""
        return FileRuns().and_then(add for add in self if add.path not in paths)

    def __iter__(self) -> Iterator[Add]:
        return chain.from_iterable(self.runs)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Add: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Add]: ...
    def __getitem__(self, index: int | slice) -> Add | Sequence[Add]:
        return tuple(self)[index]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(other) != len(self):
            return False
        if isinstance(other, FileRuns) and other.runs == self.runs:
            return True
        return all(mine == its for mine, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"FileRuns{tuple(self)!r}"


Lineage = tuple[tuple[int, str], ...]

NOTHING_APPLIED = -1
ALL_APPLIED = 2**63 - 1


@dataclass(frozen=True, slots=True)
class TableState:
    """A table at one version: everything that is known of it.

    Two states with the same version and uid are equal; ``lineage``, ``changelog_bytes`` and
    ``damaged_snapshots`` describe how they were read, and are not compared.

    Attributes:
        lineage: (version, uid) from the last snapshot (or version 1) to this version.
        changelog_bytes: Size of the changelogs since the first of the lineage.
        imports: The last import from each table version.
        table_version: The version of the table as a whole, whose folder holds the files.
        sealed: The seal of this table version, while another one replaces it.
        damaged_snapshots: Paths of damaged snapshots that were read around.
    """

    version: int = 0
    uid: str = ""
    files: Map[str, Add] = field(default_factory=Map)
    partitions: Map[PartitionKey, FileRuns] = field(default_factory=Map)
    schemas: Map[int, Schema] = field(default_factory=Map)
    current_schema: Schema | None = None
    specs: Map[int, Spec] = field(default_factory=Map)
    current_spec: Spec | None = None
    properties: Mapping[str, Any] = field(default_factory=dict)
    writers: Map[str, WriterAction] = field(default_factory=Map)
    owner: Owner | None = None
    applied: Map[AppliedKey, int] = field(default_factory=Map)
    epochs_complete: frozenset[tuple[str, int]] = frozenset()
    origins: Map[str, OriginAction] = field(default_factory=Map)
    checkpoints: Map[str, CheckpointAction] = field(default_factory=Map)
    shared_states: Map[str, SharedState] = field(default_factory=Map)
    horizon: str | None = None
    txns: Map[str, int] = field(default_factory=Map)
    txn_contents: Map[str, tuple[SequenceContent, ...]] = field(default_factory=Map)
    imports: Map[int, Imported] = field(default_factory=Map)
    sealed: Sealed | None = None
    rows: int = 0
    bytes: int = 0
    table_version: int = field(default=1, compare=False)
    lineage: Lineage = field(default=(), compare=False)
    changelog_bytes: int = field(default=0, compare=False)
    damaged_snapshots: tuple[str, ...] = field(default=(), compare=False)

    @property
    def file_count(self) -> int:
        return len(self.files)

    @property
    def parent_uid(self) -> str | None:
        """The uid that the next version names as its parent; None before version 1."""
        return self.uid or None

    @property
    def switch(self) -> int:
        """The number of the last switch that this table version took part in; 0 for none."""
        numbers = [each.switch for each in self.imports.values()]
        return max(numbers, default=0) if self.sealed is None else self.sealed.switch

    @property
    def place(self) -> tuple[int, int]:
        """A key that rises with each newer state of a table, also across switches."""
        return (max((each.switch for each in self.imports.values()), default=0), self.version)

    def applied_to(self, ingester_id: str, epoch: int, spec_id: int, values: Values) -> int:
        """The last sequence of this epoch and partition that is in files.

        Returns:
            ``NOTHING_APPLIED`` (-1) if none is, ``ALL_APPLIED`` if the epoch is complete.
        """
        if (ingester_id, epoch) in self.epochs_complete:
            return ALL_APPLIED
        return self.applied.get((ingester_id, epoch, spec_id, values), NOTHING_APPLIED)

    def txn(self, app_id: str) -> Txn:
        """All that is known of a foreign writer that has committed."""
        return Txn(app_id, self.txns[app_id], self.txn_contents.get(app_id, ()))

    def after_snapshot(self, version: int, uid: str) -> TableState:
        """The same state, with the knowledge that a snapshot of ``version`` exists.

        Unchanged if (version, uid) is not in the lineage: the snapshot is of another history, or a
        newer one is known.
        """
        if (version, uid) not in self.lineage:
            return self
        start = self.lineage.index((version, uid))
        kept = self.lineage[start:]
        share = (len(kept) - 1) / max(len(self.lineage), 1)
        return replace(self, lineage=kept, changelog_bytes=int(self.changelog_bytes * share))

    def actions(self) -> Iterator[Action]:
        """The shortest actions that make this state from nothing, as a snapshot holds them.

        Files of a partition come in the order they were committed.
        """
        # Ids rise; the highest is the current one.
        yield from (self.schemas[schema_id] for schema_id in sorted(self.schemas))
        yield from (self.specs[spec_id] for spec_id in sorted(self.specs))
        if self.properties:
            yield Properties(values=dict(self.properties))
        yield from self.writers.values()
        if self.owner is not None:
            yield self.owner
        for ingester_id, epoch in sorted(self.epochs_complete):
            yield EpochComplete(ingester_id=ingester_id, epoch=epoch)
        for (ingester_id, epoch, spec_id, values), seq in self.applied.items():
            yield Applied(
                ingester_id=ingester_id, epoch=epoch, spec_id=spec_id, values=values, seq=seq
            )
        yield from self.origins.values()
        yield from self.shared_states.values()
        yield from self.checkpoints.values()
        if self.horizon is not None:
            yield Horizon(at=self.horizon)
        for app_id in self.txns:
            yield self.txn(app_id)
        yield from self.imports.values()
        if self.sealed is not None:
            yield self.sealed
        yield from chain.from_iterable(self.partitions.values())


EMPTY = TableState()
