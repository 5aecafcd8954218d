"""One table in Delta: publishes steps, finds its head again, and cleans up the log.

A step is published by one commit, created conditionally under its number; checkpoints and the hint
only shorten reading. A complete step replaces whatever was published before, so its commit lists no
files: its checkpoint does, which is written first. Readers begin at a checkpoint, also those that
follow an open table; Spark reports an error until the commit is there, too. Programs that replay
commits one by one, such as Spark's streams, fail at the gap that is usually before a complete step;
without a gap they get no rows of this version.

Another publisher may have been faster at any of these. What it wrote is the same version, and is
used. See tests/persist/publish/delta.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

import msgspec

from persist.manifest.paths import table_folder
from persist.publish.delta import log
from persist.publish.delta.actions import (
    APP,
    CommitInfo,
    Description,
    commit,
    commit_info,
    describe,
    read_commit,
)
from persist.publish.delta.checkpoint import OTHER_ROWS, checkpoint_uid, encode_checkpoint
from persist.publish.delta.schema import unsupported
from persist.publish.format import FormatName, Head
from persist.publish.steps import ForeignCommit, NotPublishable, Overtaken, Step
from persist.store import AlreadyExists, ObjectStore, delete_all, read_mark
from persist.table import TableDefinition

_LEAST = 10
"""Commits between two checkpoints, so that a small table does not get one with each commit."""
_MOST = 1000
"""The most commits that a reader has to replay after a checkpoint."""
_REMEDY = (
    "Stop the other writer; to publish the table again: `ingester publish off`, move the folder"
    " `_delta_log` out of the table's folder, `ingester publish on`"
)


class _Tail(NamedTuple):
    """What is known of the log's end.

    Attributes:
        digest: of the description of the newest version.
        commits: since the checkpoint.
    """

    head: Head
    digest: str
    checkpoint_bytes: int
    commits: int = 0
    commit_bytes: int = 0

    @property
    def checkpoint_due(self) -> bool:
        """Whether reading the commits costs more than a checkpoint, whatever the table's size."""
        if self.commits < _LEAST:
            return False
        return self.commits >= _MOST or 2 * self.commit_bytes >= self.checkpoint_bytes


class DeltaTable:
    """A table in Delta; fulfils :class:`persist.publish.format.Format`."""

    name: FormatName = "delta"

    def __init__(self, store: ObjectStore, namespace: str, table: str) -> None:
        """Nothing is read yet."""
        self._store, self._key = store, (namespace, table)
        root = table_folder(namespace, table)
        self._folder = f"{root}/_delta_log/"
        self._location = f"{store.url}/{root}"
        self._tail: _Tail | None = None
        self._described: tuple[TableDefinition, Description] | None = None
        self._table_id: str | None = None

    def unsupported(self, definition: TableDefinition) -> tuple[str, ...]:
        """See :meth:`persist.publish.format.Format.unsupported`."""
        return unsupported(definition.schema)

    # ------------------------------------------------------------------------------------- head

    def head(self) -> Head | None:
        """See :meth:`persist.publish.format.Format.head`.

        None also for a log that readers cannot read, because a publisher stopped before its first
        commit or because objects are missing: the next complete step makes it readable.
        """
        self._tail = None
        end = log.read_end(self._store, self._folder)
        if end.newest is None:
            return None
        info = self._commit_info(end.newest.info.path)
        if end.checkpoint is None or not end.readable:
            return None
        self._tail = _Tail(
            self._head_of(end.newest.number, info),
            info.ingester_description,
            end.checkpoint.info.bytes,
            len(end.commits),
            sum(each.info.bytes for each in end.commits),
        )
        return self._tail.head

    def _head_of(self, number: int, info: CommitInfo) -> Head:
        return Head(info.place(number), info.timestamp, self._location)

    def _commit_info(self, path: str) -> CommitInfo:
        """What a commit says of its version.

        Raises:
            ForeignCommit: it is not the ingester's.
        """
        info = read_commit(self._store.get(path))
        if info is None:
            raise self._foreign(path, "was not written by the ingester")
        return info

    def _foreign(self, path: str, told: str) -> ForeignCommit:
        return ForeignCommit(self.name, self._key, path, f"{told}. {_REMEDY}")

    # ---------------------------------------------------------------------------------- publish

    def publish(self, steps: Sequence[Step], *, retain_s: float) -> Head:
        """See :meth:`persist.publish.format.Format.publish`."""
        if self._tail is None:
            self.head()
        for step in steps:
            self._publish(step)
        if self._tail is None:
            raise ValueError("nothing is published yet, and there are no steps")
        return self._tail.head

    def _publish(self, step: Step) -> None:
        tail, number = self._tail, step.place.number
        if tail is not None and number <= tail.head.place.number:
            if number == tail.head.place.number:
                self._check_same(step, tail.head.place.uid, log.commit_path(self._folder, number))
            return
        description = self._description(step.definition)
        if step.complete:
            self._tail = self._replace(step, description)
        elif tail is None or number != tail.head.place.number + 1:
            raise Overtaken
        else:
            self._tail = self._follow(tail, step, description)
            if self._tail.checkpoint_due:
                nbytes = self._checkpoint(step, description)
                self._tail = _Tail(self._tail.head, description.digest, nbytes)
                self._write_hint(step, nbytes)

    def _replace(self, step: Step, description: Description) -> _Tail:
        """Publish the whole table at a step, whatever was published before."""
        nbytes = self._checkpoint(step, description)
        self._commit(step, description, described=True)
        # Spark finds no version in a checkpoint alone, and would list nothing else by the hint.
        self._write_hint(step, nbytes)
        head = self._head_of(step.place.number, commit_info(step, description))
        return _Tail(head, description.digest, nbytes)

    def _follow(self, tail: _Tail, step: Step, description: Description) -> _Tail:
        """Publish the step after the head."""
        described = description.digest != tail.digest
        nbytes = self._commit(step, description, described=described)
        if not self._store.exists(log.commit_path(self._folder, tail.head.place.number)):
            # The log was moved away, or cleaned up: nothing leads to this commit.
            self._tail = None
            raise Overtaken
        return _Tail(
            self._head_of(step.place.number, commit_info(step, description)),
            description.digest,
            tail.checkpoint_bytes,
            tail.commits + 1,
            tail.commit_bytes + nbytes,
        )

    def _commit(self, step: Step, description: Description, *, described: bool) -> int:
        """Make the step visible, unless it is already; the size of its commit."""
        path = log.commit_path(self._folder, step.place.number)
        data = commit(step, description, described=described)
        try:
            self._store.create(path, data)
        except AlreadyExists:
            self._check_same(step, self._commit_info(path).ingester_uid, path)
        return len(data)

    def _checkpoint(self, step: Step, description: Description) -> int:
        """Write the checkpoint of a step, unless it exists; its size."""
        path = log.checkpoint_path(self._folder, step.place.number)
        data = encode_checkpoint(step, description)
        try:
            self._store.create(path, data)
        except AlreadyExists:
            # A checkpoint of a version that is committed is only a shorter form of the log.
            if step.complete:
                with self._store.open(path) as file:
                    self._check_same(step, checkpoint_uid(file), path)
        return len(data)

    def _write_hint(self, step: Step, nbytes: int) -> None:
        files = step.state.file_count
        hint = {
            "version": step.place.number,
            "size": files + OTHER_ROWS,
            "sizeInBytes": nbytes,
            "numOfAddFiles": files,
        }
        self._store.put(log.hint_path(self._folder), msgspec.json.encode(hint))

    def _check_same(self, step: Step, uid: str | None, path: str) -> None:
        if uid != step.place.uid:
            raise self._foreign(path, "belongs to another history of the table")

    def _description(self, definition: TableDefinition) -> Description:
        """How the table is described, from the last time if its columns are the same."""
        if self._described is not None and self._described[0].schema == definition.schema:
            return self._described[1]
        if reasons := unsupported(definition.schema):
            raise NotPublishable(self.name, self._key, reasons)
        if self._table_id is None:
            mark = read_mark(self._store)
            name = f"{'' if mark is None else mark.id}/{'/'.join(self._key)}"
            self._table_id = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{APP}:{name}"))
        description = describe(self._table_id, definition.schema)
        self._described = definition, description
        return description

    # --------------------------------------------------------------------------------- clean up

    def clean_up(self, *, retain_s: float, grace_s: float) -> int:
        """See :meth:`persist.publish.format.Format.clean_up`. Objects of others stay."""
        objects = log.list_log(self._store, self._folder)
        cutoff = self._store.now() - timedelta(seconds=max(retain_s, grace_s))
        gone = log.unneeded(objects, cutoff)
        if gone and log.hinted(self._store, self._folder) <= gone[-1].number:
            # Readers that follow a hint to nothing fail; without a hint they list the log.
            self._store.delete(log.hint_path(self._folder))
        delete_all(self._store, (each.info.path for each in gone))
        return len(gone)
