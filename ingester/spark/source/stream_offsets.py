"""Offsets of a stream, and the limit of one batch.

    {"snapshot": 41, "files": 3}     the first 3 files of version 41, nothing else yet
    {"version": 41, "files": 2}      everything up to version 41, and the first 2 files that 42 adds
    {…, "table_version": 2}          in generation 2 of the table; without it, in the first
    {…, "uid": "…"}                  that version's uid: a table that is created again has others

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
    """The position of a stream."""

    version: int
    files: int
    snapshot: bool = False

    @classmethod
    def of(cls, offset: dict[str, Any], table_version: int) -> Offset:
        """The offset from Spark's dictionary.

        Raises:
            StreamUnsuitable: It belongs to another generation of the table.
        """
        if (found := offset.get("table_version", 1)) != table_version:
            raise StreamUnsuitable(
                f"the checkpoint belongs to generation {found} of the table, which is now at"
                f" generation {table_version}: start with a new checkpoint"
            )
        if "snapshot" in offset:
            return cls(int(offset["snapshot"]), int(offset["files"]), True)
        return cls(int(offset["version"]), int(offset["files"]))

    def plain(self, table_version: int, uid: str | None) -> dict[str, Any]:
        """The dictionary that Spark stores."""
        plain: dict[str, Any] = {
            "snapshot" if self.snapshot else "version": self.version,
            "files": self.files,
        }
        if table_version != 1:
            plain["table_version"] = table_version
        return plain if uid is None else {**plain, "uid": uid}


BEGINNING = Offset(0, 0, snapshot=True)
"""The beginning: the whole version that is current when the stream starts, then later ones."""
FROM_NOW = Offset(-1, 0)
"""The end of the version that is current when the stream starts."""


def beginning(options: SourceOptions) -> Offset:
    """The offset at which a new stream begins, according to the options."""
    if options.given.get("starting_version") == "latest":
        return FROM_NOW
    number = options.number("starting_version", 1)
    return BEGINNING if number is None else Offset(number - 1, 0)


_LIMITS: dict[str, type[Any]] = {
    "max_files_per_trigger": ReadMaxFiles,
    "max_bytes_per_trigger": ReadMaxBytes,
    "max_rows_per_trigger": ReadMaxRows,
}


class BatchRoom:
    """The remaining room of one batch. Its first file always fits, so a stream makes progress."""

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
    """The limit of one batch according to the options.

    Raises:
        RequestRefused: More than one limit is given, or this Spark does not support limits.
    """
    said = next((name for name in _LIMITS if name in options.given), None)
    if said is not None and not LIMITS_BATCHES:
        raise RequestRefused(
            f"option {said}: {NAME} does not support limits for streams of Python data sources,"
            " which need 4.2; without the option a batch has everything new"
        )
    limits = [
        kind(number)
        for name, kind in _LIMITS.items()
        if (number := options.number(name, 1)) is not None
    ]
    if len(limits) > 1:
        raise RequestRefused(f"give only one of {', '.join(_LIMITS)}")
    return cast(ReadLimit, limits[0]) if limits else ReadAllAvailable()
