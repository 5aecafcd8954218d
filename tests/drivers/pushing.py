"""What a push does to a table, without Spark: it makes a version from files or from rows."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from ingester.pushes.record import PushRecord
from ingester.pushes.regions.region import StoreRegion
from ingester.pushes.regions.shapes import PushedFile
from persist.manifest import (
    Add,
    Manifest,
    Properties,
    Proposal,
    Schema,
    Spec,
    TableState,
    WriterIdentity,
    claim_version,
    commit,
)
from persist.parquet.encode import encode_ordered
from persist.parquet.sort import sort_rows
from persist.parquet.sparse_rows import SparseRows
from persist.partitioning import folder_of, split_batch
from persist.store import ObjectStore, PutInfo
from persist.table import TableKey


class Killed(Exception):
    """Raised where the process would have been killed."""


class KillingStore:
    """A store that simulates a kill at its n-th change, before or after the change."""

    def __init__(self, inner: ObjectStore, at: int, *, done: bool) -> None:
        self._inner = inner
        self._left = at
        self._done = done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _change(self, call: Callable[..., PutInfo], *arguments: Any) -> PutInfo:
        self._left -= 1
        if self._left == 0 and not self._done:
            raise Killed
        put = call(*arguments)
        if self._left == 0:
            raise Killed
        return put

    def put(self, path: str, data: Any) -> PutInfo:
        return self._change(self._inner.put, path, data)

    def create(self, path: str, data: Any) -> PutInfo:
        return self._change(self._inner.create, path, data)


class PausingStore:
    """A store that runs other work before its n-th call of any kind."""

    def __init__(self, inner: ObjectStore, at: int, meanwhile: Callable[[], object]) -> None:
        self._inner = inner
        self._left = at
        self._meanwhile = meanwhile
        self.paused = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            self._left -= 1
            if self._left == 0:
                self.paused = True
                self._meanwhile()
            return found(*arguments, **named)

        return call


PUSHER = WriterIdentity("pusher", "run", 1)


def push_some(
    store: ObjectStore,
    table: TableKey,
    push_id: str = "push",
    wanted: Callable[[Add], bool] = lambda add: True,
    state: TableState | None = None,
) -> int:
    """Create a version with the wanted files of the current version; return its number.

    The new version is not yet active.

    Args:
        state: The state whose files are used; the newest by default.
    """
    version = claim_version(store, *table, push_id)
    state = Manifest(store, *table).load() if state is None else state
    old = Manifest(store, *table, state.table_version)
    new = Manifest(store, *table, version)
    actions = [one for one in state.actions() if isinstance(one, Schema | Spec | Properties)]
    commit(new, None, Proposal(actions), PUSHER)
    adds = [
        msgspec.structs.replace(add, kind="push", writer=PUSHER.ingester_id, epoch=1)
        for add in sorted(state.files.values(), key=lambda add: add.at)
        if wanted(add)
    ]
    for add in adds:
        store.put(new.object_path(add.path), store.get(old.object_path(add.path)))
    if adds:
        commit(new, None, Proposal(adds), PUSHER)
    return version


def write_rows(
    regions: Sequence[StoreRegion], push: PushRecord, rows: pa.RecordBatch, files: int = 2
) -> list[PushedFile]:
    """Write rows as files into regions, each under its version of the push, as a job does."""
    definition = regions[0].definition(push)
    places = [region.place(push) for region in regions]
    written = []
    for values, part in split_batch(rows, definition.spec):
        folder = folder_of(definition.spec, values)
        ordered = sort_rows(sparse := SparseRows.of([part], definition.schema), definition)
        for file in encode_ordered(sparse, ordered, definition, metadata={}, files=files):
            name = f"{uuid.uuid4().hex}.parquet"
            path = "/".join(each for each in ("data", folder, name) if each)
            for place in places:
                place.store.put(f"{place.root}/{path}", file.data)
            written.append(
                PushedFile(
                    path=path,
                    rows=file.rows,
                    bytes=file.data.size,
                    values=values,
                    stats=file.stats,
                    writer=PUSHER.ingester_id,
                    footer_crc32c=file.footer_crc32c,
                )
            )
    return written
