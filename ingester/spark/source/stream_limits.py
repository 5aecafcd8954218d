"""The limit of one batch of a stream: what the options say, and what that lets in.

Law of this file: pure. A batch takes its first file whatever its size, so that it goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from ingester.spark.errors import RequestRefused
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
