"""Offsets of a stream, and the limit of one batch.

    {"snapshot": 41, "files": 3}     the first 3 files of version 41, nothing else yet
    {"version": 41, "files": 2}      everything up to version 41, and the first 2 files that 42 adds
    {…, "table_version": 2}          in generation 2 of the table; without it, in the first

An offset is enough to find the files after it again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

from ingester.spark.errors import RequestRefused, StreamUnsuitable
from ingester.spark.options import SourceOptions
from ingester.spark.versions import (
    LIMITS_BATCHES,
    NAME,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
)
from persist.manifest import Add


class Offset(NamedTuple):
    """The place up to which a stream has come."""

    version: int
    files: int
    snapshot: bool = False

    @classmethod
    def of(cls, offset: dict[str, Any], table_version: int) -> Offset:
        """The offset that Spark has kept as a dictionary, of a stream of this table version.

        Raises:
            StreamUnsuitable: It is of another one.
        """
        if (found := offset.get("table_version", 1)) != table_version:
            raise StreamUnsuitable(
                f"the checkpoint is of table version {found}, and the table is at version"
                f" {table_version} by now: begin anew, with a new checkpoint"
            )
        if "snapshot" in offset:
            return cls(int(offset["snapshot"]), int(offset["files"]), True)
        return cls(int(offset["version"]), int(offset["files"]))

    def plain(self, table_version: int) -> dict[str, Any]:
        """The dictionary that Spark keeps."""
        plain = {"snapshot" if self.snapshot else "version": self.version, "files": self.files}
        return plain if table_version == 1 else {**plain, "table_version": table_version}


BEGINNING = Offset(0, 0, snapshot=True)
"""The offset before everything: the version current then comes whole, and what follows it."""
FROM_NOW = Offset(-1, 0)
"""The offset behind everything that is there when the stream begins."""


def beginning(options: SourceOptions) -> Offset:
    """The offset at which the options say that a new stream begins."""
    if options.given.get("starting_version") == "latest":
        return FROM_NOW
    number = options.number("starting_version", 1)
    return BEGINNING if number is None else Offset(number - 1, 0)


_LIMITS: dict[str, type[Any]] = {
    "max_files_per_trigger": ReadMaxFiles,
    "max_bytes_per_trigger": ReadMaxBytes,
    "max_rows_per_trigger": ReadMaxRows,
}


class Room:
    """The room that one batch has left; its first file fits always."""

    def __init__(self, limit: ReadLimit) -> None:
        self._left: int | None = None
        self._cost: Callable[[Add], int] = lambda add: 1
        self._empty = True
        if isinstance(limit, ReadMaxFiles):
            self._left = limit.max_files
        elif isinstance(limit, ReadMaxBytes):
            self._left, self._cost = limit.max_bytes, lambda add: add.bytes
        elif isinstance(limit, ReadMaxRows):
            self._left, self._cost = limit.max_rows, lambda add: add.rows

    def takes(self, add: Add) -> bool:
        if self._left is None:
            return True
        self._left -= self._cost(add)
        takes = self._empty or self._left >= 0
        self._empty = False
        return takes


def batch_limit(options: SourceOptions) -> ReadLimit:
    """The limit that the options set for one batch.

    Raises:
        RequestRefused: More than one says it, or this version of Spark would not ask.
    """
    said = next((name for name in _LIMITS if name in options.given), None)
    if said is not None and not LIMITS_BATCHES:
        raise RequestRefused(
            f"option {said}: {NAME} has no limits for streams of Python data sources, 4.2 has;"
            " leave it out, and a batch has all that is new"
        )
    limits = [
        kind(number)
        for name, kind in _LIMITS.items()
        if (number := options.number(name, 1)) is not None
    ]
    if len(limits) > 1:
        raise RequestRefused(f"{', '.join(_LIMITS)}: one of them limits a batch")
    return cast(ReadLimit, limits[0]) if limits else ReadAllAvailable()
