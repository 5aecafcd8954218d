"""What a push does to a table, without Spark: a version of it made from its files."""

from __future__ import annotations

from collections.abc import Callable

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
from persist.store import ObjectStore
from persist.table import TableKey

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
