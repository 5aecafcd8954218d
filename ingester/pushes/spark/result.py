"""The outcome of a push, its progress, and its two errors: plain values, without PySpark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from ingester.pushes.hook_calls import HookCounts
from ingester.pushes.record import PushRecord
from ingester.pushes.states import Status


class PushRefused(ValueError):
    """The push is refused. Nothing was started, and nothing written."""


class PushFailed(RuntimeError):
    """The push has ended, and its generation is not live in every region.

    Attributes:
        result: the state of each region.
    """

    def __init__(self, result: PushResult) -> None:
        super().__init__(result.text())
        self.result = result


class RegionResult(NamedTuple):
    """The final state of one region.

    Attributes:
        table_version: the generation that the push created there; None if it created none.
        previous: the generation that was current before.
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
        reason: why it was aborted or rolled back; empty if it was not.
        rows, files, bytes: what was written, once for all regions.
        seconds: from its start to its end, over all drivers.
        hooks: the hook calls of this process by class and method; empty if it did not lead the
            push.
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
        """Whether the generation is live in every region."""
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
    """An event of a push, or of one of its regions."""

    at: datetime
    region: str | None
    what: str
    record: PushRecord
    """The record of the push after the event."""

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
    """Return the result of a push that is over; ``written``: rows, files and bytes."""
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
