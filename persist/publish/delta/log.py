"""The objects of a Delta log: their names, the end of a log, and what may be deleted of it.

    <namespace>/<table>/_delta_log/<number:020d>.json
    <namespace>/<table>/_delta_log/<number:020d>.checkpoint.parquet
    <namespace>/<table>/_delta_log/_last_checkpoint                    a hint, overwritten

A checkpoint sorts before the commit of the same number. Everything here is read from a listing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

import msgspec

from persist.store import ObjectInfo, ObjectNotFound, ObjectStore

_NAME = re.compile(r"(?P<number>[0-9]{20})\.(?:(?P<json>json)|checkpoint(?P<more>.*)\.parquet)")


class _Hint(msgspec.Struct):
    version: int


class LogObject(NamedTuple):
    """A commit or a checkpoint of a version.

    Attributes:
        ours: whether the name is one that we give.
    """

    number: int
    checkpoint: bool
    ours: bool
    info: ObjectInfo


class LogEnd(NamedTuple):
    """The end of a log.

    Attributes:
        newest: the newest commit.
        checkpoint: the newest checkpoint.
        commits: after the checkpoint.
    """

    newest: LogObject | None
    checkpoint: LogObject | None
    commits: tuple[LogObject, ...]

    @property
    def readable(self) -> bool:
        """Whether a reader finds all that the newest version needs, and its commit."""
        if self.newest is None or self.checkpoint is None:
            return False
        start = self.checkpoint.number
        numbers = [each.number for each in self.commits]
        return self.newest.number >= start and numbers == list(
            range(start + 1, self.newest.number + 1)
        )


def commit_path(folder: str, number: int) -> str:
    """The commit of a version in a log's folder, which ends with '/'."""
    return f"{folder}{number:020d}.json"


def checkpoint_path(folder: str, number: int) -> str:
    """The checkpoint of a version."""
    return f"{folder}{number:020d}.checkpoint.parquet"


def hint_path(folder: str) -> str:
    """The object that tells readers where to begin."""
    return f"{folder}_last_checkpoint"


def list_log(store: ObjectStore, folder: str, first: int = 0) -> list[LogObject]:
    """The commits and checkpoints from a version on, in order of their names."""
    found = []
    for info in store.list(folder, start_after=f"{folder}{first:020d}" if first else ""):
        match = _NAME.fullmatch(info.path[len(folder) :])
        if match is not None:
            checkpoint = match["json"] is None
            ours = not match["more"]
            found.append(LogObject(int(match["number"]), checkpoint, ours, info))
    return found


def read_end(store: ObjectStore, folder: str) -> LogEnd:
    """The end of the log. The hint saves listing what is before it."""
    first = hinted(store, folder)
    objects = list_log(store, folder, first)
    if first and not any(each.checkpoint for each in objects):
        objects = list_log(store, folder)
    commits = [each for each in objects if not each.checkpoint]
    checkpoint = max((each for each in objects if each.checkpoint), default=None)
    start = 0 if checkpoint is None else checkpoint.number
    after = tuple(each for each in commits if each.number > start)
    return LogEnd(commits[-1] if commits else None, checkpoint, after)


def hinted(store: ObjectStore, folder: str) -> int:
    """The version of the checkpoint in the hint; 0 without one."""
    try:
        return max(0, msgspec.json.decode(store.get(hint_path(folder)), type=_Hint).version)
    except (ObjectNotFound, msgspec.MsgspecError):
        return 0


def unneeded(objects: Iterable[LogObject], cutoff: datetime) -> list[LogObject]:
    """The objects with names of ours that no version needs that was current after the cutoff.

    That version is the newest one published at the cutoff. It is read from the newest checkpoint
    that is not newer than it, so everything before that checkpoint may go. This is the rule in
    Delta's PROTOCOL.md, "Metadata Cleanup".
    """
    known = [each for each in objects if each.ours]
    oldest = max((each.number for each in known if each.info.at <= cutoff), default=0)
    committed = {each.number for each in known if not each.checkpoint and each.number <= oldest}
    bases = (each.number for each in known if each.checkpoint and each.number in committed)
    base = max(bases, default=0)
    return [each for each in known if each.number < base]
