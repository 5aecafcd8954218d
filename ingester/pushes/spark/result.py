"""What comes of a push: its result, and the two ways in which there is none to be glad about.

Law of this file: values alone; no PySpark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from ingester.pushes.counts import HookCounts
from ingester.pushes.record import PushRecord
from ingester.pushes.status import Status


class PushRefused(ValueError):
    """The push cannot be as it was asked for. Nothing was begun, and nothing written."""


class PushFailed(RuntimeError):
    """The push has ended, and its version is not live everywhere.

    Attributes:
        result: Where each region stands.
    """

    def __init__(self, result: PushResult) -> None:
        super().__init__(result.text())
        self.result = result


class RegionResult(NamedTuple):
    """Where one region stands.

    Attributes:
        table_version: The one that the push has made there; None where it has made none.
        previous: The one that counted before.
    """

    name: str
    status: Status
    table_version: int | None
    previous: int | None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushResult:
    """The outcome of a push.

    Attributes:
        reason: Why it was given up or undone; empty where it was not.
        rows, files, bytes: What was written, once for all regions; 0 where nothing was.
        seconds: From its beginning to its end, however many drivers it took.
        hooks: What this process has asked its hooks, and how often each answer came, by class and
            method; empty where it has not led the push.
    """

    push_id: str
    namespace: str
    table: str
    status: Status
    regions: tuple[RegionResult, ...]
    reason: str = ""
    rows: int = 0
    files: int = 0
    bytes: int = 0
    seconds: float = 0.0
    hooks: tuple[HookCounts, ...] = ()

    @property
    def live(self) -> bool:
        """Whether the push's version is live in every region."""
        return self.status is Status.SERVING

    def text(self) -> str:
        """The outcome as a sentence."""
        where = ", ".join(
            f"{each.name} {each.status.value}" + (f" ({each.reason})" if each.reason else "")
            for each in self.regions
        )
        said = f"push {self.push_id} of {self.namespace}/{self.table}: {self.status.value}"
        if self.reason:
            said += f": {self.reason}"
        if self.live:
            said += (
                f": {self.rows} rows in {self.files} files, {self.bytes / 1e6:.1f} MB,"
                f" {self.seconds:.1f} s"
            )
        return f"{said}; {where}"


class PushProgress(NamedTuple):
    """Something that has happened to a push, or to one region of it."""

    at: datetime
    region: str | None
    what: str
    record: PushRecord
    """Where the push stands by then."""

    def text(self) -> str:
        """The event as a line."""
        record = self.record
        where = "" if self.region is None else f" {self.region}:"
        stands = " · ".join(f"{each.name} {each.status.value}" for each in record.regions)
        return (
            f"{self.at:%H:%M:%S} {record.namespace}/{record.table}{where} {self.what}   [{stands}]"
        )


Progress = Callable[[PushProgress], None]


def result_of(
    record: PushRecord,
    written: tuple[int, int, int] = (0, 0, 0),
    hooks: Sequence[HookCounts] = (),
) -> PushResult:
    """Return the result of a push that is over; ``written`` are rows, files and bytes."""
    rows, files, nbytes = written
    ended = record.ended_at or record.since
    return PushResult(
        push_id=record.push_id,
        namespace=record.namespace,
        table=record.table,
        status=record.status,
        regions=tuple(
            RegionResult(each.name, each.status, each.table_version, each.previous, each.reason)
            for each in record.regions
        ),
        reason="" if record.ending is None else record.ending.reason,
        rows=rows,
        files=files,
        bytes=nbytes,
        seconds=(ended - record.began_at).total_seconds(),
        hooks=tuple(hooks),
    )
