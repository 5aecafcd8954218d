"""What a push does to a table, without Spark: a version of it made from its files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from persist.manifest import (
    Add,
    Manifest,
    Properties,
    Proposal,
    Schema,
    Spec,
    WriterIdentity,
    claim_version,
    commit,
)
from persist.store import ObjectStore, PutInfo
from persist.table import TableKey


class Killed(Exception):
    """The process ended here."""


class KillingStore:
    """Passes everything on; ends the process at its n-th change, before it or right after it."""

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
    """Passes everything on; before its n-th call, of whatever kind, others do something."""

    def __init__(self, inner: ObjectStore, at: int, meanwhile: Callable[[], object]) -> None:
        self._inner = inner
        self._left = at
        self._meanwhile = meanwhile
        self.paused = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*arguments: Any) -> Any:
            self._left -= 1
            if self._left == 0:
                self.paused = True
                self._meanwhile()
            return found(*arguments)

        return call


PUSHER = WriterIdentity("pusher", "run", 1)


def push_some(
    store: ObjectStore,
    table: TableKey,
    push_id: str = "push",
    wanted: Callable[[Add], bool] = lambda add: True,
) -> int:
    """A version with the wanted files of the version that counts; its number. It counts not yet."""
    version = claim_version(store, *table, push_id)
    old, new = Manifest(store, *table), Manifest(store, *table, version)
    state = old.load()
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
